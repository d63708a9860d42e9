"""The bytes that one rank sends one peer: FORMAT.md specifies them, frame.py reads and writes."""
