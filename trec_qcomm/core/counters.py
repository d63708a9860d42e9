"""Counters of what each exchange sends and how long it takes, table by table.

Knows: bytes, seconds, table names. Does not know: codecs, files.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from trec_qcomm.core.stats import BagStats, KindStats, TableBags, TableStats

# Counters of each table, in Traffic and in TableStats.
_SUMS = ("raw_nbytes", "distinct_nbytes", "wire_nbytes", "num_flushed", "num_evicted")


class Traffic:
    """Counter of what one direction of one exchange sends to OTHER ranks, since `reset`.

    It counts three sizes of each table. raw_nbytes: all rows uncoded, also rows that need not be
    sent. distinct_nbytes: the rows that are sent, uncoded. wire_nbytes: the bytes that the
    collective is given, without headers. Uncoded rows have the dtype of the lookups, mostly
    float32.

    Args:
        kind: one of core.stats.TRAFFIC_KINDS.
        tables: T distinct names.
        value_nbytes: bytes of an uncoded value.
    """

    def __init__(self, kind: str, tables: Sequence[str], *, value_nbytes: int = 4) -> None:
        self.kind, self.tables, self.value_nbytes = kind, tuple(tables), value_nbytes
        self.raw_nbytes = torch.zeros(len(self.tables), dtype=torch.int64)
        self.distinct_nbytes = torch.zeros(len(self.tables), dtype=torch.int64)
        self.wire_nbytes = torch.zeros(len(self.tables), dtype=torch.int64)
        self.max_abs_err = torch.empty(len(self.tables))
        self.num_flushed = torch.zeros(len(self.tables), dtype=torch.int64)
        self.num_evicted = torch.zeros(len(self.tables), dtype=torch.int64)  # may lie on a GPU
        # Tables whose first flushed values nobody was told of; a reset does not forget who was.
        self.newly_flushed: list[str] = []
        self._ever_flushed: set[str] = set()
        self.reset()

    def reset(self) -> None:
        """Set all counts to zero, in place.

        New tensors do not work: a tensor made in inference mode cannot be changed outside of it.
        """
        self.num_calls = 0
        self.header_nbytes = 0
        for name in _SUMS:
            getattr(self, name).zero_()
        self.max_abs_err.fill_(-1.0)  # not measured
        self.encode_s: dict[str, float] = defaultdict(float)
        self.decode_s: dict[str, float] = defaultdict(float)
        self.wire_s = 0.0

    def add_bytes(self, table: Tensor, sent: Tensor, wire: Tensor, header_nbytes: int) -> None:
        """Count the bytes of one collective call.

        Args:
            table: [S] int64, index of each segment's table.
            sent: [S] int64, uncoded bytes of each segment; they count as raw and as distinct.
            wire: [S] int64, encoded bytes of each segment.
            header_nbytes: bytes of frame headers.
        """
        self.num_calls += 1
        self.header_nbytes += header_nbytes
        self.raw_nbytes.index_add_(0, table, sent)
        self.distinct_nbytes.index_add_(0, table, sent)
        self.wire_nbytes.index_add_(0, table, wire)

    def add_flushed(self, table: Tensor, num_values: Tensor) -> None:
        """Count values that were lost beside much larger ones (core.stats.TableStats.num_flushed).

        Args: table: [S] int64, index of each segment's table.  num_values: [S] int64.
        """
        self.num_flushed.index_add_(0, table, num_values)
        names = {self.tables[t] for t in table[num_values > 0].tolist()} - self._ever_flushed
        self.newly_flushed += sorted(names)
        self._ever_flushed |= names

    def add_left_out(self, table: Tensor, nbytes: Tensor) -> None:
        """Add rows that were not sent to the raw bytes.

        Args: table: [S] int64, indices of tables.  nbytes: [S] int64, bytes of those rows, uncoded.
        """
        self.raw_nbytes.index_add_(0, table, nbytes)


class BagCounts:
    """Counter of the bags of ids in this rank's batches, and of the bags that are sent.

    Equal bags are sent once. Each id of an unpooled feature counts as a bag.
    """

    def __init__(self) -> None:
        self.tables: list[str] = []
        self.num_bags = torch.zeros(0, dtype=torch.int64)
        self.num_sent = torch.zeros(0, dtype=torch.int64)

    def numbers_of(self, tables: Iterable[str]) -> Tensor:
        """Return [..] int64, the index of each table; new tables get the next indices."""
        numbers = []
        for table in tables:
            if table not in self.tables:
                self.tables.append(table)
            numbers.append(self.tables.index(table))
        more = torch.zeros(len(self.tables) - len(self.num_bags), dtype=torch.int64)
        self.num_bags = torch.cat([self.num_bags, more])
        self.num_sent = torch.cat([self.num_sent, more])
        return torch.tensor(numbers, dtype=torch.int64)

    def add(self, table: Tensor, num_bags: Tensor, num_sent: Tensor) -> None:
        """Count one batch of F features.

        Args:
            table: [F] int64, index of each feature's table.
            num_bags: [F] int64, bags of each feature.
            num_sent: [F] int64, distinct bags of each feature.
        """
        self.num_bags.index_add_(0, table, num_bags)
        self.num_sent.index_add_(0, table, num_sent)

    def reset(self) -> None:
        """Set all counts to zero, in place, as Traffic.reset does."""
        self.num_bags.zero_()
        self.num_sent.zero_()

    def stats(self) -> BagStats:
        """Return the counts."""
        pairs = zip(self.num_bags.tolist(), self.num_sent.tolist(), strict=True)
        return BagStats(
            num_bags=int(self.num_bags.sum()),
            num_sent=int(self.num_sent.sum()),
            tables={
                name: TableBags(num_bags=bags, num_sent=sent)
                for name, (bags, sent) in zip(self.tables, pairs, strict=True)
            },
        )


def kind_stats(traffics: Iterable[Traffic]) -> KindStats:
    """Return the sum of several counters of one kind of traffic."""
    traffics = list(traffics)
    header_nbytes = sum(traffic.header_nbytes for traffic in traffics)
    tables_nbytes = sum(int(traffic.wire_nbytes.sum()) for traffic in traffics)
    return KindStats(
        raw_nbytes=sum(int(traffic.raw_nbytes.sum()) for traffic in traffics),
        distinct_nbytes=sum(int(traffic.distinct_nbytes.sum()) for traffic in traffics),
        wire_nbytes=tables_nbytes + header_nbytes,
        header_nbytes=header_nbytes,
        num_calls=sum(traffic.num_calls for traffic in traffics),
        wire_s=sum((traffic.wire_s for traffic in traffics), 0.0),
        encode_s=_summed(traffic.encode_s for traffic in traffics),
        decode_s=_summed(traffic.decode_s for traffic in traffics),
        tables=_by_table(traffics),
    )


def _summed(mappings: Iterable[dict[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for mapping in mappings:
        for name, value in mapping.items():
            sums[name] += value
    return dict(sums)


def _by_table(traffics: Sequence[Traffic]) -> dict[str, TableStats]:
    places: dict[str, list[tuple[Traffic, int]]] = {}
    for traffic in traffics:
        for t, name in enumerate(traffic.tables):
            places.setdefault(name, []).append((traffic, t))
    return {
        name: TableStats(
            max_abs_err=_largest([traffic.max_abs_err[t] for traffic, t in rows]),
            **{name: sum(int(getattr(traffic, name)[t]) for traffic, t in rows) for name in _SUMS},
        )
        for name, rows in places.items()
    }


def _largest(errors: Sequence[Tensor]) -> float | None:
    """Return the largest error; None where none was measured. NaN is larger than any number."""
    measured = [error for error in errors if not bool(error < 0)]
    # Tensor.max keeps NaN, which Python's max may not.
    return float(torch.stack(measured).max()) if measured else None
