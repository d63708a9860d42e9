"""Parts of zionex.py: every sharding with every codec, run after run with equal bits."""
