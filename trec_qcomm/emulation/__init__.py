"""Emulation: one process trains a model as N ranks would, with the real codecs, without a network.

    emulated = trec_qcomm.emulate(model, "best", ranks=4)
    optimizers = emulated.run(make_optimizer)
    for batches in ...:  # one batch a rank
        losses = emulated.run(train_step, optimizers, batches)

`train_step(model, optimizer, batch)` is what a real rank runs. A program that shards its model
itself runs as `trec_qcomm.played_ranks(4).run(program)`. Losses, weights and noise are, bit for
bit, those of real ranks on CPU with gloo that compute with as many threads; what stats() says of
seconds is not, as the ranks take turns.
"""

from trec_qcomm.emulation.model import Emulated, emulate, played_ranks

__all__ = ["Emulated", "emulate", "played_ranks"]
