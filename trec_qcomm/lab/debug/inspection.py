"""Methods of a QComm that look at values and change nothing: capture, debugger, attribution.

`QComm` imports them from here when they are first used (qcomm.TOOLS).
Knows: sessions. Does not know: models, TorchRec, how values are observed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.core.codec import Codec, Contract
from trec_qcomm.integration.session import Session
from trec_qcomm.lab.debug.debugger import Debugger, debugger_of
from trec_qcomm.lab.debug.row_capture import CAPTURED_NBYTES, RowCapture
from trec_qcomm.lab.debug.rule import DebugRule
from trec_qcomm.qcomm import QComm

LossFunction = Callable[[Any], Tensor | float]


@dataclass(frozen=True)
class TableEffect:
    """Effect of one table's forward codec on the loss.

    Args:
        table: name of the table.
        added_loss: the loss with all codecs, minus the loss with all codecs but this one.
    """

    table: str
    added_loss: float


@dataclass(frozen=True)
class Attribution:
    """Effects of the forward codecs on the loss of one batch, the mean over ranks.

    Args:
        loss: the loss with all codecs on.
        exact_loss: the loss with all codecs off.
        tables: effects of all tables whose forward codec is not exact, the largest magnitude first.
            On one batch the sign is often chance. The sum of effects is not `loss` minus
            `exact_loss`, because codecs act together.
    """

    loss: float
    exact_loss: float
    tables: tuple[TableEffect, ...]

    def __str__(self) -> str:
        lines = [f"loss {self.loss:.6g}, with exact rows {self.exact_loss:.6g}; of this, by table:"]
        lines += [f"{effect.added_loss:+12.3e}  {effect.table}" for effect in self.tables]
        return "\n".join(lines)


def capture_rows(
    qcomm: QComm, steps: int, *, gradients: bool = False, max_nbytes: int = CAPTURED_NBYTES
) -> RowCapture:
    """Keep the rows that each table sends forward in the next training steps.

        capture = qcomm.capture_rows(20)
        ...  # 20 steps
        capture.save("rows.pt")  # on all ranks; then python -m trec_qcomm preview

    Rows are kept exactly, whatever the codecs are. With `unique_bags` a row that repeats in a batch
    is sent, and kept, once.

    Args:
        steps: number of training steps, from the next one on.
        gradients: whether to keep the gradients of the rows, too; a preview shows them.
        max_nbytes: memory for the rows of all ranks together. Each table has an equal share. When a
            share is full, later rows of its table are left out and counted.

    Raises: ValueError: the model is not sharded yet, rows are captured already, or the memory is
        too small for a row of each table.
    """
    return RowCapture(qcomm.session, steps=steps, gradients=gradients, max_nbytes=max_nbytes)


@contextmanager
def debug(
    qcomm: QComm,
    folder: str | Path | None = None,
    *,
    every: int = 100,
    tables: str | Sequence[str] = "*",
    shadow: Sequence[Codec] = (),
) -> Iterator[Debugger]:
    """Measure, inside the block, how codecs change each table's rows and each dense gradient.

        with qcomm.debug("runs/debug", every=10, shadow=[trec_qcomm.Rowwise(2)]):
            ...  # train
        print(qcomm.debug_summary())

    Training goes on bit by bit as without it. The config's `debug` does the same for a whole
    training. Dense gradients are measured if the config has `dense`, gradients of DATA_PARALLEL
    tables if it has `data_parallel`. records.DebugRecord explains the figures. Running means begin
    anew in a resumed run.

    Args:
        folder: folder of the records, debug-rank0.jsonl and so on, to which records are appended.
            None keeps only the latest records, in memory.
        every: number of steps from one measured step to the next; the first step of the block is
            measured.
        tables: patterns on names of tables and dense parameters to measure.
        shadow: codecs to try on the same values; their results are thrown away.

    Raises: ValueError: a debugger is at work, a pattern matches nothing, or a shadow does not
        take these rows.
    """
    path = None if folder is None else str(folder)
    rule = DebugRule(every=every, tables=tables, shadow=shadow, folder=path)
    debugger = Debugger(rule, qcomm.session.config, from_first_step=True)
    debugger.start(qcomm.session)
    try:
        yield debugger
    finally:
        debugger.stop()


def debug_summary(qcomm: QComm) -> str:
    """Return a text of what stands out in the debugger's measurements on this rank.

    The text has up to five places, each with its first step and what to do, in the order of steps.
    Then come the noisiest places, and the cost of measuring.
    """
    debugger = debugger_of(qcomm.session)
    return "debug: off; see QComm.debug" if debugger is None else debugger.summary()


def attribute(qcomm: QComm, loss_fn: LossFunction, batch: Any) -> Attribution:
    """Return which tables' forward codecs change the loss of a batch most. Collective.

        print(qcomm.attribute(lambda batch: loss_of(model(batch.features), batch), batch))

    It takes a forward pass with all codecs, one without codecs, and one for each table with only
    that table's codec off. All passes run without gradients and with the same random numbers. They
    also have the same noise, unless codecs group tables differently. Statistics and numbers of
    steps stay as they are. With batch normalization call it in `model.eval()`.

    Args:
        loss_fn: function that takes the batch and returns this rank's loss, a number or a
            tensor of one.
        batch: this rank's batch, of any type.

    Raises: ValueError: the model is not sharded yet, or all forward codecs are exact.
    """
    session = qcomm.session
    coded = {t: c for one in session.collectives for t, c in one.codecs.forward.items()}
    tables = sorted(t for t, codec in coded.items() if codec.contract is not Contract.EXACT)
    if not tables:
        raise ValueError("attribute: no table is sharded yet (call it then), or codecs are exact")
    losses = []
    with torch.no_grad(), leaving_no_trace(session):
        for exact in (set[str](), set(session.tables), *({table} for table in tables)):
            with torch.random.fork_rng(), session.collectives.exact_tables(exact):
                losses.append(float(loss_fn(batch)))
    total = torch.tensor(losses, dtype=torch.float64, device=summing_device())
    dist.all_reduce(total)
    on, off, *without = (total / dist.get_world_size()).tolist()
    effects = [TableEffect(t, on - loss) for t, loss in zip(tables, without, strict=True)]
    ordered = sorted(effects, key=lambda effect: -abs(effect.added_loss))
    return Attribution(loss=on, exact_loss=off, tables=tuple(ordered))


@contextmanager
def leaving_no_trace(session: Session) -> Iterator[None]:
    """Restore the attributes of the session's counters at the end of the block."""
    counters = [*session.counters.values(), session.bags]
    saved = [(counter, deepcopy(vars(counter))) for counter in counters]
    try:
        yield
    finally:
        for counter, attributes in saved:
            for name, value in attributes.items():
                setattr(counter, name, value)


def summing_device() -> torch.device:
    """Return a device whose tensors all ranks can add up."""
    is_gpu = "nccl" in dist.get_backend()
    return torch.device("cuda", torch.cuda.current_device()) if is_gpu else torch.device("cpu")
