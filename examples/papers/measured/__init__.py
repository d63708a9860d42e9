"""What the papers' scripts measure without a training of its own, each file one subject."""
