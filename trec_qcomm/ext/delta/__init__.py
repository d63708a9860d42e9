"""Deltas: the rows of a model's tables that changed since the last export, for servers.

A training process writes them (`export`), coded like rows on the wire. A server reads them
(`read`) with numpy alone.
"""
