"""Numeric debugger: measure how a codec changes the values of each table and parameter.

Knows: codecs, placed frames, records. Does not know: TorchRec, configs, process groups.
"""
