"""Averages over replicas of tables, of which only the rows travel that some replica touched."""
