"""The numeric debugger: what a codec does to the values of each table and parameter, in figures.

Knows: codecs, placed frames, records. Does not know: TorchRec, configs, process groups.
"""
