"""Preview of codecs on rows that a training really sent, and the config that is best for them.

captured.py reads the rows, candidates.py names the codecs, measure.py measures one table and
previews.py all of them, also while a training runs; text.py shows them. choices.py decides what
--out writes, written.py writes it. __main__.py is the command line.
"""
