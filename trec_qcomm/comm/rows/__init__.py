"""Embedding rows between the owners of tables and the owners of samples, both ways."""
