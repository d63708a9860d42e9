"""All-reduce the gradients of the replicated part, of DATA_PARALLEL tables, or of any DDP."""
