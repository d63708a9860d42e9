"""The numeric debugger in a training: what it observes, and what a user calls."""
