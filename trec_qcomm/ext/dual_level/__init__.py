"""Dual-level adaptive error bounds: by table (classes) and by step (schedules); and vector-LZ.

Source: SC'24 (Feng, Zhang et al.).
"""
