"""Replicas of a model's tables, made equal again: 2D parallelism, and plain periodic averaging."""
