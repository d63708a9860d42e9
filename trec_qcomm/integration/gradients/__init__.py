"""The all-reduce of gradients: of the replicated part, of DATA_PARALLEL tables, of any DDP."""
