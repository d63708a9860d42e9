"""Claims about quantized collectives: configurations, and what their records decide."""
