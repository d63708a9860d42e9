"""Ids on the way to the owners of their tables: counted, noted, equal bags merged."""
