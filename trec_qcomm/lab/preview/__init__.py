"""Preview codecs on rows that a training really sent, and choose the config that is best for them.

candidates.py names the codecs. measure.py measures one table, previews.py all tables, live.py a
running training. text.py shows the results. choices.py decides what --out writes.
"""
