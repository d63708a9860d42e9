"""Rules that set tolerances and choose codecs. They know no process groups and no TorchRec."""
