"""Counters: what each exchange sent and how long it took, table by table. No I/O, no units but
bytes and seconds.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


class Traffic:
    """One direction of one exchange, summed over calls since `reset`.

    raw is what float32 rows would take and wire what was handed to the collective; both count
    what goes to OTHER ranks only. wire includes headers.

    Args: kind: such as "embedding_forward".  tables: T distinct names.
    """

    def __init__(self, kind: str, tables: Sequence[str]) -> None:
        self.kind, self.tables = kind, tuple(tables)
        self.raw_nbytes = torch.zeros(len(self.tables), dtype=torch.int64)
        self.wire_nbytes = torch.zeros(len(self.tables), dtype=torch.int64)
        self.max_abs_err = torch.empty(len(self.tables))
        self.reset()

    def reset(self) -> None:
        """Back to zero. In place: tensors made in inference mode could not be added to later."""
        self.num_calls = 0
        self.header_nbytes = 0
        self.raw_nbytes.zero_()
        self.wire_nbytes.zero_()
        self.max_abs_err.fill_(-1.0)  # not measured
        self.encode_s: dict[str, float] = defaultdict(float)
        self.decode_s: dict[str, float] = defaultdict(float)
        self.wire_s = 0.0

    def add_bytes(self, table: Tensor, raw: Tensor, wire: Tensor, header_nbytes: int) -> None:
        """Count one call. Args: table, raw, wire: [S] int64, table by number."""
        self.num_calls += 1
        self.header_nbytes += header_nbytes
        self.raw_nbytes.index_add_(0, table, raw)
        self.wire_nbytes.index_add_(0, table, wire)


class BagCounts:
    """How many bags of ids this rank's batches had, and how many were sent because they differ.
    Of unpooled features each id counts as a bag.
    """

    def __init__(self) -> None:
        self.tables: list[str] = []
        self.num_bags = torch.zeros(0, dtype=torch.int64)
        self.num_sent = torch.zeros(0, dtype=torch.int64)

    def numbers_of(self, tables: Iterable[str]) -> Tensor:
        """[..] int64, the number of each table; new ones get the next."""
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
        """Count one batch. Args: [F] int64 each, of every feature; table by number."""
        self.num_bags.index_add_(0, table, num_bags)
        self.num_sent.index_add_(0, table, num_sent)

    def reset(self) -> None:
        """Back to zero, in place, see Traffic.reset."""
        self.num_bags.zero_()
        self.num_sent.zero_()

    def summary(self) -> dict[str, Any]:
        """num_bags, num_sent: int; tables: {name: {num_bags, num_sent}}."""
        pairs = zip(self.num_bags.tolist(), self.num_sent.tolist(), strict=True)
        return {
            "num_bags": int(self.num_bags.sum()),
            "num_sent": int(self.num_sent.sum()),
            "tables": {
                name: {"num_bags": bags, "num_sent": sent}
                for name, (bags, sent) in zip(self.tables, pairs, strict=True)
            },
        }


def summary(traffics: Iterable[Traffic]) -> dict[str, Any]:
    """Several `Traffic` of one kind as one plain dict.

    Returns: raw_nbytes, wire_nbytes, header_nbytes, num_calls: int; wire_s: float; encode_s and
        decode_s: {codec and dim: float}; tables: {name: {raw_nbytes, wire_nbytes, max_abs_err}},
        max_abs_err None where it was not measured.
    """
    total: dict[str, Any] = {"raw_nbytes": 0, "wire_nbytes": 0, "header_nbytes": 0, "num_calls": 0}
    encode_s: dict[str, float] = defaultdict(float)
    decode_s: dict[str, float] = defaultdict(float)
    tables: dict[str, dict[str, Any]] = {}
    wire_s = 0.0
    for traffic in traffics:
        total["num_calls"] += traffic.num_calls
        total["header_nbytes"] += traffic.header_nbytes
        total["raw_nbytes"] += int(traffic.raw_nbytes.sum())
        total["wire_nbytes"] += int(traffic.wire_nbytes.sum()) + traffic.header_nbytes
        wire_s += traffic.wire_s
        for codec, seconds in traffic.encode_s.items():
            encode_s[codec] += seconds
        for codec, seconds in traffic.decode_s.items():
            decode_s[codec] += seconds
        for t, name in enumerate(traffic.tables):
            row = tables.setdefault(name, {"raw_nbytes": 0, "wire_nbytes": 0, "max_abs_err": None})
            row["raw_nbytes"] += int(traffic.raw_nbytes[t])
            row["wire_nbytes"] += int(traffic.wire_nbytes[t])
            error = traffic.max_abs_err[t]
            if not bool(error < 0):  # torch.maximum keeps NaN, Python's max may not
                before = torch.tensor(row["max_abs_err"] or 0.0)
                row["max_abs_err"] = float(torch.maximum(before, error))
    return total | {
        "wire_s": wire_s,
        "encode_s": dict(encode_s),
        "decode_s": dict(decode_s),
        "tables": tables,
    }
