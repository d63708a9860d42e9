"""Scalars for TensorBoard or what is like it: figures of the debugger, and what a guard read.

    from torch.utils.tensorboard import SummaryWriter

    scalars = DebugScalars(SummaryWriter("runs/tensorboard"))
    with qcomm.debug(every=100) as debugger:
        for step, batch in enumerate(batches):
            ...
            if step % 100 == 0:
                scalars.add(debugger.records)

Knows: records of the debugger and of guards. Does not know: TensorBoard; any object with its
`add_scalar` will do.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from trec_qcomm.lab.records import DebugRecord, GuardProbeRecord, Record

FIGURES = (
    "snr_db", "rms", "bits", "lost_share", "peak", "zero_share", "error_over_bound", "bias",
    "residual_over_gradient", "num_nan", "num_inf", "num_broken",
)  # fmt: skip


class ScalarWriter(Protocol):
    """The method of TensorBoard's SummaryWriter that is called."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Add a number of one step."""


class DebugScalars:
    """Writer of debug records as scalars "debug_DIRECTION_FIGURE/NAME": tables stand together.

    A place of an all-reduce follows the name, and the codec of a shadow.

    Args:
        writer: TensorBoard's SummaryWriter, or what has its `add_scalar`.
        figures: fields of DebugRecord to write; one that a record has none of is left out.
        shadows: whether to write what shadows give, too.
    Raises: ValueError: a figure that is no number of DebugRecord.
    """

    def __init__(
        self, writer: ScalarWriter, *, figures: Sequence[str] = FIGURES, shadows: bool = False
    ) -> None:
        for figure in figures:
            if figure not in _NUMBERS:
                raise ValueError(f"figures: {figure!r} is not one of {', '.join(sorted(_NUMBERS))}")
        self._writer, self._figures, self._shadows = writer, tuple(figures), shadows
        self._written: set[tuple[Any, ...]] = set()

    def add(self, records: Iterable[DebugRecord]) -> None:
        """Write the records that were not in the call before.

        Args: records: records of one rank, such as the latest of `with qcomm.debug()`.
        """
        given = {_key(record): record for record in records}
        for key, record in given.items():
            if key not in self._written and (self._shadows or not record.is_shadow):
                self._add(record)
        self._written = set(given)  # records that are gone do not come back

    def _add(self, record: DebugRecord) -> None:
        name = " ".join(
            filter(None, (record.name, record.site, record.codec if record.is_shadow else None))
        )
        for figure in self._figures:
            value = getattr(record, figure)
            if value is not None:
                tag = f"debug_{record.direction}_{figure}/{name}"
                self._writer.add_scalar(tag, float(value), record.step)


class GuardScalars:
    """Writer of a guard's probes: "guard/change", mean and limit, and "guard_rung_forward/NAME".

    Args: writer: TensorBoard's SummaryWriter, or what has its `add_scalar`.
    """

    def __init__(self, writer: ScalarWriter) -> None:
        self._writer = writer
        self._next = 0

    def add(self, records: Iterable[Record]) -> None:
        """Write the probes that come after those of the calls before.

        Args: records: records of one training, in order; those of other kinds are left out.
        """
        for record in records:
            if isinstance(record, GuardProbeRecord) and record.probe >= self._next:
                self._next = record.probe + 1
                self._add(record)

    def _add(self, record: GuardProbeRecord) -> None:
        for name in ("change", "mean", "low", "high", "limit_ne", "wire_nbytes"):
            value = getattr(record, name)
            if value is not None:
                self._writer.add_scalar(f"guard/{name}", float(value), record.step)
        for direction, rungs in (("forward", record.forward), ("backward", record.backward)):
            for table, rung in rungs.items():
                tag = f"guard_rung_{direction}/{table}"
                self._writer.add_scalar(tag, float(rung), record.step)


def _key(record: DebugRecord) -> tuple[Any, ...]:
    return (
        record.rank, record.step, record.name, record.direction, record.codec, record.is_shadow,
        record.site, record.module,
    )  # fmt: skip


_NUMBERS = {
    name
    for name, hint in DebugRecord.__annotations__.items()
    if hint in ("float | None", "int | None")
}
