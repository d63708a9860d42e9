"""Guard: the watch over codecs while a model trains, as decisions on numbers that all ranks share.

Knows: changes of the loss in percent, figures of tables by name, numbers of rungs. Does not know:
codecs, process groups, TorchRec, files.
"""
