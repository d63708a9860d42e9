"""Errors of encoding and decoding at run time. A bad configuration is a plain `ValueError`."""


class CorruptFrameError(RuntimeError):
    """The bytes of a frame are not what its sender wrote, or not what this rank expects.

    Args:
        reason: one sentence.
        rank: the sender in the process group, or None where unknown.
        table: the table whose segment is wrong, or None where the whole frame is.
        segment: number of the bad segment in the batch, from which a caller may find the table.
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
        segment: number of the first segment of the batch that holds such a value.
        table: name of the segment's table, where the caller knows it.
    """

    def __init__(self, reason: str, *, segment: int, table: str | None = None) -> None:
        super().__init__(f"table {table!r}: {reason}" if table is not None else reason)
        self.reason, self.segment, self.table = reason, segment, table
