"""Preview of codecs on rows that a training really sent, and the config that is best for them.

candidates.py names the codecs, measure.py measures one table and previews.py all of them, live.py
while a training runs; text.py shows them. choices.py decides what --out writes.
"""
