"""Collectives over coded rows and gradients. They know codecs by core.codec, and no TorchRec."""
