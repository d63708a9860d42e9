"""Sharding plans by name: files.py reads them, generators.py places tables, planned.py asks
TorchRec's planner."""
