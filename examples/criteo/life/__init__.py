"""Trainings that something happens to, with and without a guard: the parts of lifespan.py."""
