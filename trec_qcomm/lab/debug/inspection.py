"""The methods of a QComm that look at values: capture, debugger, attribution. They change nothing.

`QComm` takes them from here when they are first used (qcomm.TOOLS).
Knows: sessions. Does not know: how values are observed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trec_qcomm.core.codec import Codec
from trec_qcomm.lab.debug.attached import debugger_of
from trec_qcomm.lab.debug.attribution import Attribution, LossFunction, attribute_loss
from trec_qcomm.lab.debug.debugger import Debugger
from trec_qcomm.lab.debug.row_capture import CAPTURED_NBYTES, RowCapture
from trec_qcomm.lab.debug.rule import DebugRule
from trec_qcomm.lab.records import Scalar
from trec_qcomm.qcomm import QComm


def capture_rows(
    qcomm: QComm, steps: int, *, gradients: bool = False, max_nbytes: int = CAPTURED_NBYTES
) -> RowCapture:
    """Keep the rows that each table sends forward in the next training steps.

        capture = qcomm.capture_rows(20)
        ...  # 20 steps
        capture.save("rows.pt")  # on all ranks; then python -m trec_qcomm analyze

    Rows are exact whatever the codecs are. With `unique_bags` a row that repeats in a batch is
    sent, and kept, once.

    Args:
        steps: number of training steps, from the next one on.
        gradients: whether to keep the gradients of the rows, too, which a preview shows.
        max_nbytes: memory for the rows of all ranks together. Each table has an equal share;
            later rows of a table whose share is full are left out and counted.

    Raises: ValueError: the model is not sharded yet, rows are captured already, or too little
        memory for a row of each table.
    """
    session = qcomm.session
    return RowCapture(
        session.collectives,
        session.tables,
        steps=steps,
        gradients=gradients,
        max_nbytes=max_nbytes,
        source=session.config.source,
        bags=session.bags,
        num_rows=session.table_rows,
    )


@contextmanager
def debug(
    qcomm: QComm,
    folder: str | Path | None = None,
    *,
    every: int = 100,
    tables: str | Sequence[str] = "*",
    shadow: Sequence[Codec] = (),
    setup: Mapping[str, Scalar] | None = None,
) -> Iterator[Debugger]:
    """Measure inside the block what codecs do to each table and dense gradient.

        with qcomm.debug("runs/debug", every=10, shadow=[trec_qcomm.Rowwise(2)]):
            ...  # train
        print(qcomm.debug_summary())

    Training goes on bit by bit as without it. The config's `debug` does the same for a whole
    training. Dense gradients are measured where the config has `dense`, gradients of
    DATA_PARALLEL tables where it has `data_parallel`. Figures are those of
    records.DebugRecord; running means begin anew in a resumed run.

    Args:
        folder: folder of the records, debug-rank0.jsonl and so on, which are appended to; None
            keeps the latest in memory alone.
        every: number of steps from one measured step to the next; the first step of the block
            is measured.
        tables: patterns on names of tables and dense parameters; others are left out.
        shadow: codecs to try on the same values; what they make of them is thrown away.
        setup: all that must be equal for two runs to be compared, for the records.

    Raises: ValueError: a debugger is at work, a pattern matches nothing, or a shadow does not
        take these rows.
    """
    rule = DebugRule(
        every=every,
        tables=tables,
        shadow=shadow,
        folder=None if folder is None else str(folder),
    )
    attached = debugger_of(qcomm.session)
    debugger = attached.start(rule, setup=setup, from_first_step=True)
    try:
        yield debugger
    finally:
        attached.stop()


def debug_summary(qcomm: QComm) -> str:
    """Return what stands out in what the debugger measured on this rank, as text.

    These are the five worst, the first step and what to do about each, and what measuring took.
    """
    debugger = debugger_of(qcomm.session).latest
    return "debug: off; see QComm.debug" if debugger is None else debugger.summary()


def attribute(qcomm: QComm, loss_fn: LossFunction, batch: Any) -> Attribution:
    """Return which tables' forward codecs change the loss of a batch most. Collective.

        print(qcomm.attribute(lambda batch: loss_of(model(batch.features), batch), batch))

    It takes a forward pass with all codecs, one with none and one for each table, with only
    that table's codec off, all of them without gradients, with the same random numbers and the
    same noise where codecs do not group tables in another way. Statistics and numbers of steps
    stay as they are. With batch normalization call it in `model.eval()`.

    Args:
        loss_fn: function that takes the batch and returns this rank's loss, a number or a
            tensor of one.
        batch: this rank's batch, of any type.

    Raises: ValueError: the model is not sharded yet, or all forward codecs are exact.
    """
    return attribute_loss(qcomm.session, loss_fn, batch)
