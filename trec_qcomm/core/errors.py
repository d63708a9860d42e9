"""Errors at run time, of bytes, values and peers. A bad configuration is a plain `ValueError`."""

from collections.abc import Sequence


class CorruptFrameError(RuntimeError):
    """The bytes of a frame are not what its sender wrote, or not what this rank expects.

    Args:
        reason: one sentence.
        rank: global rank of the sender; None where unknown.
        table: name of the table whose segment is wrong; None where the whole frame is wrong.
        segment: index of the bad segment in the batch, from which a caller may find the table.
    """

    def __init__(
        self,
        reason: str,
        *,
        rank: int | None = None,
        table: str | None = None,
        segment: int | None = None,
    ) -> None:
        where = f"frame from rank {rank}" if rank is not None else "frame"
        where += f", table {table!r}" if table is not None else ""
        super().__init__(f"{where}: {reason}")
        self.reason, self.rank, self.table, self.segment = reason, rank, table, segment


class UnencodableError(ValueError):
    """A codec was told to raise on a value that it cannot carry (NaN, inf or an overflow).

    Args:
        reason: one sentence.
        segment: index of the first segment of the batch that holds such a value.
        table: name of the segment's table; None where the caller does not know it.
    """

    def __init__(self, reason: str, *, segment: int, table: str | None = None) -> None:
        super().__init__(f"table {table!r}: {reason}" if table is not None else reason)
        self.reason, self.segment, self.table = reason, segment, table


class GuardError(RuntimeError):
    """A guard saw what its configuration calls an error, such as `on_nan: error`."""


class LostPeerError(RuntimeError):
    """A peer is gone, or did not answer before the process group's timeout.

    torch's error is the `__cause__` and ends the text. The process group cannot be used afterwards.
    DDP raises a RuntimeError of its own, whose text contains this error's text.

    Args:
        rank: this rank.
        peers: ranks that may be to blame; a single one where that is known.
        collective: what this rank waited for, in words, with the step.
        seconds: time since the collective was started.
        cause: torch's error.
    """

    def __init__(
        self, *, rank: int, peers: Sequence[int], collective: str, seconds: float, cause: Exception
    ) -> None:
        numbers = ", ".join(map(str, peers))
        who = f"rank {numbers}" if len(peers) == 1 else f"one of ranks {numbers}"
        said = str(cause).partition("\n")[0]
        what = f"lost {who} after {seconds:.3g} s"
        if "timed out" in said.lower() or "timeout" in said.lower():
            what = f"{who} did not answer in {seconds:.3g} s"
        super().__init__(f"rank {rank}: {what}: {collective}: see its log: {said}")
        self.rank, self.peers, self.collective = rank, tuple(peers), collective
        self.seconds = seconds


class UnequalReplicasError(RuntimeError):
    """Ranks hold unequal results of an all-reduce, or unequal weights: their replicas drift apart.

    DDP raises a RuntimeError of its own, whose text contains this error's text.

    Args:
        rank: this rank.
        peers: the ranks whose bits differ from this rank's.
        parameters: names of the parameters whose results or weights differ.
        collective: the all-reduce, in words, with the step.
    """

    def __init__(
        self, *, rank: int, peers: Sequence[int], parameters: Sequence[str], collective: str
    ) -> None:
        super().__init__(
            f"rank {rank}: {collective}: other bits than on rank {', '.join(map(str, peers))} of "
            f"{', '.join(parameters)}; ranks must compute alike: go on from a checkpoint on equal "
            "processors, with equal versions, settings and numbers of threads of torch"
        )
        self.rank, self.peers, self.parameters = rank, tuple(peers), tuple(parameters)
