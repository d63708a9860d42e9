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

from collections.abc import Iterable
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

    A place of an all-reduce follows the name. Shadows are left out.

    Args: writer: TensorBoard's SummaryWriter, or what has its `add_scalar`.
    """

    def __init__(self, writer: ScalarWriter) -> None:
        self._writer = writer
        self._written: set[tuple[Any, ...]] = set()

    def add(self, records: Iterable[DebugRecord]) -> None:
        """Write the records that were not in the call before.

        Args: records: records of one rank, such as the latest of `with qcomm.debug()`.
        """
        given = {(r.rank, r.step, *_tag(r)): r for r in records if not r.is_shadow}
        for key, record in given.items():
            if key not in self._written:
                self._add(record)
        self._written = set(given)  # records that are gone do not come back

    def _add(self, record: DebugRecord) -> None:
        direction, name, site, _ = _tag(record)
        for figure in FIGURES:
            value = getattr(record, figure)
            if value is not None:
                tag = f"debug_{direction}_{figure}/{name}" + (f" {site}" if site else "")
                self._writer.add_scalar(tag, float(value), record.step)


def _tag(record: DebugRecord) -> tuple[str, str, str | None, str | None]:
    return record.direction, record.name, record.site, record.module


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
