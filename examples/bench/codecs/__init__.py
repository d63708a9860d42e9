"""bench-codec: every codec beside other compressors, on rows and gradients of a training."""
