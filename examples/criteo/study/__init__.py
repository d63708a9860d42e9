"""Parts of accuracy.py: one training by emulation, the statistics of many, how they are shown."""
