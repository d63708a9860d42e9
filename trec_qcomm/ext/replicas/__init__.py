"""Average replicas of tables, and send only the rows that at least one replica touched."""
