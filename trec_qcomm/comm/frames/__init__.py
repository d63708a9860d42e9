"""Frames: which rows are which segment, and rows to sealed frames and back."""
