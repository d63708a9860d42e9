"""Simulate many ranks in one process: the code of real ranks, in threads that run one at a time.

Everything above the process group is the code of real ranks: TorchRec, DDP, exchanges, codecs,
noise. So nothing is written twice, and every sharding and module works. Other designs were
considered:
- One autograd node over all ranks, with the segments of every sharding: a second implementation of
  each exchange, which must be proved equal, and for one kind of model. It saved the work that each
  rank does for itself, in TorchRec and in the optimizer of replicated layers. That was 44 % of the
  CPU time for 4 ranks of the Criteo example with 128 samples each.
- Real gloo groups between threads: sockets, and no order in which the threads run.

Knows: threads, torch's process groups. Does not know: codecs, TorchRec.
"""

PLAYED = "played"  # torch's name of the backend
