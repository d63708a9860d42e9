"""Sharders, dists and wrappers that call comm: the only code that knows TorchRec and DDP."""
