"""The only code that knows TorchRec and DDP: sharders, dists and wrappers that call comm."""
