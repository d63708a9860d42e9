"""What codecs cost a model: what is measured of it, and what is expected."""
