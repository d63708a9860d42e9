"""Claims about dynamic communication thresholding: configurations, and what records decide."""
