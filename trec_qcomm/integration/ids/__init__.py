"""Ids on their way to the owners of the tables: counted, remembered, each bag sent once."""
