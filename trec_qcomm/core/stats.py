"""Stats: what a rank sent to other ranks, by kind of traffic and by table.

Knows: numbers. Does not know: torch, so that a run's records can be read where torch is missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trec_qcomm.core.aligned import aligned

TRAFFIC_KINDS = (
    "embedding_forward",  # pooled or unpooled rows, to the ranks whose samples need them
    "embedding_backward",  # gradients of these rows, to the ranks that hold the tables
    "intra_embedding_forward",  # the same two within a node, where sharding has two hops
    "intra_embedding_backward",
    "dense",  # gradients of the replicated part; `hierarchical`: between nodes
    "intra_dense",  # the same within a node, where the all-reduce has two hops
    "data_parallel",  # gradients of DATA_PARALLEL tables
    "input",  # ids and their lengths
)
TRAFFIC_GROUPS: dict[str, tuple[str, ...]] = {
    "forward": ("embedding_forward", "intra_embedding_forward"),
    "backward": ("embedding_backward", "intra_embedding_backward"),
    "dense": ("dense", "intra_dense", "data_parallel"),
    "ids": ("input",),
}


@dataclass(frozen=True, kw_only=True)
class TableStats:
    """Traffic of one table, without frame headers.

    Args:
        raw_nbytes, distinct_nbytes, wire_nbytes: bytes, as in KindStats.
        max_abs_err: largest absolute error; None unless the config's measure_error is true.
        num_flushed: number of values that were lost because a much larger value set their step. The
            larger value is in the same row (rowwise) or in the same segment (error_bounded with a
            relative bound). A value counts if it is not 0 and less than 1/256 of its step, and if
            three quarters of all nonzero values there are that small. Rows that stay on this rank
            count, too. A sample decides where to count, so the number may be too low. On a GPU
            nothing is counted, and the number stays 0.
        num_evicted: number of residuals that were dropped because another id came to their place
            (`error_feedback` of a table); more rows of memory make it smaller.
    """

    raw_nbytes: int = 0
    distinct_nbytes: int = 0
    wire_nbytes: int = 0
    max_abs_err: float | None = None
    num_flushed: int = 0
    num_evicted: int = 0


@dataclass(frozen=True, kw_only=True)
class KindStats:
    """Traffic of one kind.

    Args:
        raw_nbytes: uncoded bytes of everything, before equal bags are merged and before empty or
            untouched rows are left out; 4 bytes a value, 2 where lookups give FP16 or BF16.
        distinct_nbytes: uncoded bytes of what is sent after that.
        wire_nbytes: bytes that the collectives are given, headers included.
        header_nbytes: bytes of frame headers, and of sizes that travel beside frames.
        num_calls: number of collective calls.
        wire_s: seconds blocked on the network, for all codecs together as they share one frame.
        encode_s, decode_s: seconds by codec and dim. On CUDA nothing waits for the device: there
            wire_s, encode_s and decode_s are the seconds that launching took.
        tables: traffic by table.
    """

    raw_nbytes: int = 0
    distinct_nbytes: int = 0
    wire_nbytes: int = 0
    header_nbytes: int = 0
    num_calls: int = 0
    wire_s: float = 0.0
    encode_s: Mapping[str, float] = field(default_factory=dict)
    decode_s: Mapping[str, float] = field(default_factory=dict)
    tables: Mapping[str, TableStats] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TableBags:
    """Bags of ids of one table.

    Args: num_bags: number of all bags.  num_sent: number of distinct bags, which were sent.
    """

    num_bags: int = 0
    num_sent: int = 0


@dataclass(frozen=True, kw_only=True)
class BagStats:
    """Bags of ids in this rank's batches, and the distinct bags, which were sent.

    Only tables whose equal bags may be merged are counted. Each id of an unpooled feature is a bag.
    """

    num_bags: int = 0
    num_sent: int = 0
    tables: Mapping[str, TableBags] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Stats:
    """What one rank sent to other ranks since construction or the last reset.

    There is an attribute for each of TRAFFIC_KINDS, such as `stats.dense.wire_nbytes`.

    Args:
        bags: bags of ids of the tables whose equal bags may be merged.
        sync: averages over replicas of tables (`QComm.sync`).
        num_steps: number of training steps, counted as backward passes that sent gradients.
    """

    embedding_forward: KindStats = field(default_factory=KindStats)
    embedding_backward: KindStats = field(default_factory=KindStats)
    intra_embedding_forward: KindStats = field(default_factory=KindStats)
    intra_embedding_backward: KindStats = field(default_factory=KindStats)
    dense: KindStats = field(default_factory=KindStats)
    intra_dense: KindStats = field(default_factory=KindStats)
    data_parallel: KindStats = field(default_factory=KindStats)
    input: KindStats = field(default_factory=KindStats)
    bags: BagStats = field(default_factory=BagStats)
    sync: KindStats = field(default_factory=KindStats)
    num_steps: int = 0

    def by_kind(self) -> dict[str, KindStats]:
        """Return the traffic of every kind, in the order of TRAFFIC_KINDS."""
        return {kind: getattr(self, kind) for kind in TRAFFIC_KINDS}

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return {kind: the fields of its KindStats}; the kind `input` also has `bags`."""
        kinds = {kind: asdict(stats) for kind, stats in self.by_kind().items()}
        kinds["input"]["bags"] = asdict(self.bags)
        return kinds

    def __str__(self) -> str:
        """Return one table as text: KB and ms of each group of traffic, in a step.

        If no step was counted, the numbers are sums over everything so far.
        """
        divisor = max(self.num_steps, 1)
        what = f"a step, {self.num_steps} steps" if self.num_steps else "in all"
        groups = {
            name: [getattr(self, kind) for kind in kinds] for name, kinds in TRAFFIC_GROUPS.items()
        }
        if self.sync.num_calls:
            groups["sync"] = [self.sync]
        groups["all"] = [stats for group in groups.values() for stats in group]
        rows = [_HEAD, *(_cells(name, group, divisor) for name, group in groups.items())]
        text = aligned(rows, right=range(1, len(_HEAD)))
        return f"Sent by this rank to others, {what}:\n{text}"


_HEAD = (
    "", "raw [KB]", "distinct [KB]", "wire [KB]", "ratio", "encode [ms]", "wire [ms]",
    "decode [ms]",
)  # fmt: skip


def _cells(name: str, group: Sequence[KindStats], divisor: int) -> tuple[str, ...]:
    """Return a line of the table: the sums over some kinds of traffic."""
    raw = sum(stats.raw_nbytes for stats in group)
    wire = sum(stats.wire_nbytes for stats in group)
    sizes = raw, sum(stats.distinct_nbytes for stats in group), wire
    seconds = (
        sum(sum(stats.encode_s.values()) for stats in group),
        sum(stats.wire_s for stats in group),
        sum(sum(stats.decode_s.values()) for stats in group),
    )
    return (
        name,
        *(f"{nbytes / divisor / 1e3:.1f}" for nbytes in sizes),
        f"{raw / wire:.2f}" if wire else "-",
        *(f"{1e3 * s / divisor:.2f}" if s else "-" for s in seconds),
    )
