"""Many ranks played in one process: the code of real ranks, in threads of which one runs at a time.

Everything above the process group is what real ranks run: TorchRec, DDP, exchanges, codecs, noise.
So nothing is written twice, and every sharding and module is played. Other designs were weighed:
- One autograd node over all ranks, with the segments of every sharding: a second implementation of
  each exchange, which must be proved equal, and for one kind of model. It saved what each rank does
  for itself, in TorchRec and in the optimizer of replicated layers: of 4 ranks of the Criteo
  example, 128 samples each, 44 % of the CPU time.
- Real gloo groups between threads: sockets, and no order in which the threads run.

Knows: threads, torch's process groups. Does not know: codecs, TorchRec.
"""

PLAYED = "played"  # torch's name of the backend
