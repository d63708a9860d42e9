"""Ids of a batch as messages to the owners of the tables."""
