"""Many ranks played in one process: the code of real ranks, in threads of which one runs at a time.

Everything above the process group is what real ranks run: TorchRec, DDP, exchanges, codecs, noise.
So nothing is written twice, and every sharding and module is played. Other designs were weighed:
- One autograd node over all ranks, with the segments of every sharding: a second implementation of
  each exchange, which must be proved equal. It saves what each rank does for itself, the optimizer
  of replicated layers above all: about half of the CPU time of a step of 4 ranks, 128 samples each.
- Real gloo groups between threads: sockets, and no order in which the threads run.

Knows: threads, torch's process groups. Does not know: codecs, TorchRec.
"""

PLAYED = "played"  # torch's name of the backend


def is_played(group: object) -> bool:
    """Return whether a process group is of played ranks."""
    return getattr(group, "backend_name", None) == PLAYED
