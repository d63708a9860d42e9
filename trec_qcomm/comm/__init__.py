"""Collectives over coded rows and gradients. They know core.codec, and know no TorchRec."""
