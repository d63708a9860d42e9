"""MatrixShape: a parameter that is sent as two factors, and what its factors are called.

Knows: names, sizes. Does not know: values, messages.
"""

from dataclasses import dataclass

from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.dense.low_rank.ranks import RankChoice

# End the names of what is sent.
LEFT, RIGHT, PROBES = " (left factor)", " (right factor)", " (left out)"


@dataclass(frozen=True)
class MatrixShape:
    """Parameter that is sent as two factors.

    Args:
        name: the parameter's name.
        num_rows, num_columns: n and m; the parameter's first dimension, and all others.
        rank: r, less than n and m.
        block, coding: values of a block and number of the Coding of both factors.
        choice: rule by which the rank is chosen while training; None: it stays.
        largest: the largest rank that is chosen.
    """

    name: str
    num_rows: int
    num_columns: int
    rank: int
    block: int
    coding: int
    choice: RankChoice | None = None
    largest: int = 0

    @property
    def most_columns(self) -> int:
        """The largest rank that the factors may have."""
        return self.rank if self.choice is None else self.largest

    @property
    def numel(self) -> int:
        """Number of values of the parameter."""
        return self.num_rows * self.num_columns

    @property
    def left(self) -> ParameterShape:
        """What is sent first, [r, n]: the columns of a basis one behind the other."""
        numel = self.rank * self.num_rows
        return ParameterShape(self.name + LEFT, numel, self.block, self.coding, is_factor=True)

    @property
    def right(self) -> ParameterShape:
        """What is sent then, [r, m]: the coordinates in that basis."""
        numel = self.rank * self.num_columns
        return ParameterShape(self.name + RIGHT, numel, self.block, self.coding, is_factor=True)


def parameter_of(name: str) -> str:
    """Return the name of the parameter of which a sent name is a factor, or the name itself."""
    for suffix in (LEFT, RIGHT, PROBES):
        name = name.removesuffix(suffix)
    return name
