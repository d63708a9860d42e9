"""Embedding modules of TorchRec whose exchanges of rows are coded: sharders, modules, dists."""
