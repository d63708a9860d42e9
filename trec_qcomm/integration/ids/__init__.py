"""Count and note the ids that go to the owners of their tables, and merge equal bags."""
