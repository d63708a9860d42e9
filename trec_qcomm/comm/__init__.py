"""Collectives over coded rows. Sees codecs only through core.codec; knows no TorchRec."""
