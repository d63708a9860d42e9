"""The method of a QComm that makes its guard; `QComm` takes it from here (qcomm.TOOLS).

Knows: sessions. Does not know: how a guard decides.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trec_qcomm.lab.debug.attribution import LossFunction
from trec_qcomm.lab.guard.extension import guarding_of
from trec_qcomm.lab.guard.guard import Guard
from trec_qcomm.lab.records import Scalar
from trec_qcomm.qcomm import QComm


def guard(
    qcomm: QComm,
    loss_fn: LossFunction,
    probe_batches: Sequence[Any],
    *,
    parts: int = 1,
    file: str | Path | None = None,
    setup: Mapping[str, Scalar] | None = None,
    run: str | None = None,
) -> Guard:
    """Return the guard that the config's `guard` asks for. Collective; once, after sharding.

        guard = qcomm.guard(loss_of, probe_batches)
        for batch in batches:
            ...  # forward, backward, optimizer.step()
            guard.step()

    At a probe it calls `loss_fn` on each batch with codecs and without, without gradients,
    with torch's random numbers and the noise of codecs drawn anew, alike for both. Statistics
    and numbers of steps stay as they are. Whether dropout and batch normalization are as in
    training is up to loss_fn: call `model.eval()` and `model.train()` in it. Batches that the
    model did not train on tell most.

    Args:
        loss_fn: function that takes a batch and returns this rank's loss, a number or a
            tensor of one; with `parts`, a tensor with the loss of each sample.
        probe_batches: this rank's batches, of any type, which stay the same; as many on all
            ranks, and two or more parts in all. The spread of their changes says how certain
            a change is: eight in all trip soon.
        parts: in how many parts, of samples that follow one another, each batch is cut once
            its losses are known: one forward pass then does for as many batches.
        file: JSONL file of records that rank 0 appends to; None writes none.
        setup: all that must be equal for two runs to be compared, for the records.
        run: name of the training, for the records.

    Raises: ValueError: no `guard` in the config, a second guard, a model that is not sharded
        yet, a pattern without a table, too few probe batches, or numbers of these that differ
        by rank.
    """
    return guarding_of(qcomm.session).start(
        loss_fn, probe_batches, parts=parts, file=file, setup=setup, run=run
    )
