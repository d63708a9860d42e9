"""Plan frames, encode rows into sealed frames, and decode them."""
