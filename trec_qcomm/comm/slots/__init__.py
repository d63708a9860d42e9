"""Frames whose sizes vary, without asking for their sizes first: slots and overflows."""
