"""One process that plays all ranks of a training: the model of accuracy.py."""
