"""Replicas of all tables on played ranks: the model of replicas.py."""
