"""The command `python -m trec_qcomm analyze`: an error bound and an encoder for every table.

rows.py reads the rows, tables.py measures and decides, report.py writes it down, __main__.py is the
command line. Knows: config, codecs, control. Does not know: TorchRec, process groups.
"""
