"""Parts of micro21.py: see what a codec costs, choose codecs, guard them."""
