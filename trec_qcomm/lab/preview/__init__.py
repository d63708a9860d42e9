"""The command `python -m trec_qcomm preview`: what each codec would make of each table's rows.

candidates.py names the codecs, measure.py codes rows and counts, text.py writes tables, live.py
does it in a training that runs, __main__.py is the command line. Knows: config, codecs, analyze's
file of rows. Does not know: TorchRec, which codec is good enough.
"""
