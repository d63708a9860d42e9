"""Long random searches for what must never happen: `make fuzz`."""
