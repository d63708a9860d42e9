"""One training step on a cluster: its parts, and the link speed from which coding does not pay.

    step = compute + lookup + encode + decode + ids + forward + backward + dense + sync

One part comes after the other, as in a plain training loop, but for
- dense: its all-reduce runs beside a share `overlap` of compute and lookup (DDP starts it bucket by
  bucket in backward); what is longer than that counts;
- ids, with `pipeline`: those of the next batch travel beside the rest of compute and lookup
  (TrainPipelineSparseDist).
- sync, with groups of replicas: the average of their tables. Plain TorchRec all-reduces all rows
  and their optimizer's state, by a ring between the replicas of a GPU. Ours sends the rows that
  were touched, as they are, with their ids: between two replicas each its own, between more to the
  row's owner, which sends the average to all (`sync: {algorithm: auto}`). Nothing is beside it. Its
  bytes were counted on 2 replicas of 2 ranks, its seconds are extrapolated.
Finding distinct bags, host code and kernel launches take no time here. The codec of our reduction
inside a node is the identity (no `intra:`), that of TorchRec's is the one of the rows. TorchRec's
INT8 counts as if a reduce-scatter could add it.

Knows: plans, links, ratios, speeds. Does not know: where these numbers are from.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from trec_qcomm.ext.planner.cost_model import FLOAT32_NBYTES, Throughput
from trec_qcomm.lab.simulate.links import Cluster, Hops
from trec_qcomm.lab.simulate.plans import PLANS, Load, Model

PARTS = ("compute", "lookup", "encode", "decode", "ids", "forward", "backward", "dense", "sync")
WORK = ("compute", "lookup")
FLOP_A_VALUE = 6  # and sample: a multiplication and an addition forward, twice that backward
PASSES_A_ROW = 3  # read in the lookup; read and written in the update
ID_ROUNDS = 3  # TorchRec sends sizes, lengths, ids
SIZES_AND_ROWS = 2
TOUCHED_ID_NBYTES = 1  # an id of a sorted list of many, packed
LEAST_GAIN = 1.01  # of a ratio: below, what a codec does is a copy, and takes no time
LOWEST_GB_S, HIGHEST_GB_S = 1e-4, 1e6  # where a break-even is looked for


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A config by what it leaves of float32 traffic.

    Args:
        name: name of the configuration.
        distinct_share: share of bags, rows and ids that is sent.
        forward, backward, dense: compression ratio of what is sent, frame headers included.
        ids: compression ratio of the ids of distinct bags.
        dense_algorithm: name of our all-reduce's algorithm; None is TorchRec's, the fastest of all.
        dense_intra: compression ratio of a hierarchical all-reduce's first hop, inside a node.
        is_ours: partial sums of rows are added as QComm does it, else as TorchRec does (plans.py).
        sizes_first: the size of a coded row is not known to its receiver.
    """

    name: str
    distinct_share: float = 1.0
    forward: float = 1.0
    backward: float = 1.0
    dense: float = 1.0
    ids: float = 1.0
    dense_algorithm: str | None = None
    dense_intra: float = 1.0
    is_ours: bool = False
    sizes_first: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.distinct_share <= 1:
            raise ValueError(f"distinct_share: {self.distinct_share} is not a number in (0, 1]")
        for kind in ("forward", "backward", "dense", "ids", "dense_intra"):
            if not 0 < getattr(self, kind) < math.inf:
                raise ValueError(f"{kind}: {getattr(self, kind)} is not a finite number > 0")


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU.

    Args:
        tflop_s: TFLOP/s that the dense layers reach.
        memory_gb_s: GB/s of memory that lookups reach.
        throughput: speed of any codec.
        overlap: share of compute beside which dense gradients travel.
        pipeline: ids of the next batch travel beside the rest of compute.
        compute_s: seconds of a step without embeddings and communication, as measured; None: what
            `tflop_s` makes of the dense layers.
    """

    tflop_s: float
    memory_gb_s: float
    throughput: Throughput
    overlap: float
    pipeline: bool = False
    compute_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("tflop_s", "memory_gb_s"):
            if not 0 < getattr(self, name) <= math.inf:
                raise ValueError(f"{name}: {getattr(self, name)} is not a number > 0")
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap: {self.overlap} is not a number in [0, 1]")


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """Groups of GPUs that have all tables each, and average them (2D parallelism).

    Args:
        num_groups: number of groups; each has the tables sharded over its GPUs.
        every: steps from average to average.
        table_rows: rows of all tables.
        touched_share: share of the rows that one group touched since the last average.
    """

    num_groups: int = 1
    every: int = 1
    table_rows: int = 0
    touched_share: float = 1.0

    def sync_s(self, configuration: Configuration, dim: int, cluster: Cluster) -> float:
        """Return the seconds of a step's share of an average."""
        if self.num_groups == 1:
            return 0.0
        row_nbytes: float = (dim + 1) * FLOAT32_NBYTES  # with the row's optimizer state
        num_rows, others = self.table_rows * self.num_groups / cluster.num_gpus, self.num_groups - 1
        num_messages, times = 2 * others, 2 * others / self.num_groups
        if configuration.is_ours:
            row_nbytes += TOUCHED_ID_NBYTES
            num_messages, times = self._touched_rows_sent()
        nbytes = times * row_nbytes * num_rows
        return cluster.inter.transfer_s(num_messages=num_messages, nbytes=nbytes) / self.every

    def _touched_rows_sent(self) -> tuple[int, float]:
        """Return the messages of a GPU in an average, and the rows that it sends over all it has.

        Of more than two groups, what they touch together counts as if all rows were alike.
        """
        others, touched = self.num_groups - 1, self.touched_share
        if others == 1:
            return 1, touched
        together = 1 - (1 - touched) ** self.num_groups
        return 2 * others, others / self.num_groups * (touched + together)


ONE_GROUP = Replicas()


@dataclass(frozen=True, kw_only=True)
class Step:
    """Seconds of a step. Args: parts_s: seconds that each of PARTS adds to it."""

    parts_s: dict[str, float]

    @property
    def step_s(self) -> float:
        """Seconds of all parts."""
        return sum(self.parts_s.values())

    @property
    def communication_share(self) -> float:
        """Share of the step that is neither compute nor lookup.

        So encoding and decoding count as communication, and what is sent beside compute does not.
        """
        return 1 - sum(self.parts_s[part] for part in WORK) / self.step_s if self.step_s else 0.0


def simulate(
    configuration: Configuration,
    plan: str,
    model: Model,
    cluster: Cluster,
    device: Device,
    replicas: Replicas = ONE_GROUP,
) -> Step:
    """Return the step of a configuration. Args: plan: a key of PLANS."""
    everyone = cluster
    cluster = replace(cluster, num_gpus=cluster.num_gpus // replicas.num_groups)
    load = PLANS[plan](
        model, cluster, distinct=configuration.distinct_share, is_ours=configuration.is_ours
    )
    compute_s = device.compute_s
    if compute_s is None:
        compute_s = FLOP_A_VALUE * model.dense_values * model.batch_size / (1e12 * device.tflop_s)
    row_nbytes = model.dim * FLOAT32_NBYTES
    lookup_s = PASSES_A_ROW * load.lookups * row_nbytes / (1e9 * device.memory_gb_s)
    work_s = compute_s + lookup_s
    ids = Hops(intra=load.ids.intra / configuration.ids, inter=load.ids.inter / configuration.ids)
    ids_s = cluster.all_to_all_s(ids, rounds=ID_ROUNDS)
    dense_nbytes = model.dense_values * FLOAT32_NBYTES
    dense_s = _dense_s(configuration, everyone, dense_nbytes)
    encoded, decoded = _coded_nbytes(configuration, load, dense_nbytes, everyone.num_gpus)
    hidden_ids_s = (1 - device.overlap) * work_s if device.pipeline else 0.0
    rounds = SIZES_AND_ROWS if configuration.sizes_first else 1
    return Step(
        parts_s={
            "compute": compute_s,
            "lookup": lookup_s,
            "encode": device.throughput.codec_s(encoded_nbytes=encoded, decoded_nbytes=0),
            "decode": device.throughput.codec_s(encoded_nbytes=0, decoded_nbytes=decoded),
            "ids": max(0.0, ids_s - hidden_ids_s),
            "forward": _rows_s(cluster, load, configuration.forward, rounds),
            "backward": _rows_s(cluster, load, configuration.backward, 1),
            "dense": max(0.0, dense_s - device.overlap * work_s),
            "sync": replicas.sync_s(configuration, model.dim, everyone),
        }
    )


def _dense_s(configuration: Configuration, cluster: Cluster, nbytes: float) -> float:
    """Return the seconds of the all-reduce: of the algorithm that ours has, else of the fastest."""
    algorithm = configuration.dense_algorithm
    if algorithm == "hierarchical":
        return _by_node_s(configuration, cluster, nbytes)
    coded = cluster.all_reduce_s(nbytes / configuration.dense)
    if algorithm in coded:
        return coded[algorithm]
    return min(coded.values()) if algorithm is None else min(coded["ring"], coded["two_shot"])


def _by_node_s(configuration: Configuration, cluster: Cluster, nbytes: float) -> float:
    """Return the seconds of ours: sums in the node, a two-shot between nodes, the sums in the node.

    A GPU has a G-th of the values between nodes. The sums are coded there, and so in the node.
    """
    share = nbytes / cluster.node_size
    inside, coded = (cluster.node_size - 1) * share, share / configuration.dense
    sums_s = cluster.inside_s(inside / configuration.dense_intra)
    each_way_s = cluster.across_s((cluster.num_nodes - 1) / cluster.num_nodes * coded)
    return sums_s + 2 * each_way_s + cluster.inside_s(inside / configuration.dense)


def _rows_s(cluster: Cluster, load: Load, ratio: float, rounds: int) -> float:
    """Return the seconds of the reductions and the exchange, or of their reverse."""
    sent = Hops(intra=load.rows.intra / ratio, inter=load.rows.inter / ratio)
    reduced_s = cluster.inside_s(load.reduced_nbytes / (ratio if load.reduced_coded else 1))
    reduced_s += cluster.reduce_scatter_s(load.summed_nbytes / ratio)
    if load.across:
        return reduced_s + cluster.across_s(sent.inter, rounds=rounds)
    return reduced_s + cluster.all_to_all_s(sent, rounds=rounds)


def _coded_nbytes(
    configuration: Configuration, load: Load, dense_nbytes: float, num_gpus: int
) -> tuple[float, float]:
    """Return the float32 bytes of a step that are encoded, and that are decoded.

    Backward, who received rows sends their gradients. The all-reduce counts as two-shot: n and the
    sum of n/N to encode, the chunks of N and then all sums to decode; nothing on one GPU, which
    has no all-reduce.
    """
    forward = configuration.forward > LEAST_GAIN
    backward = configuration.backward > LEAST_GAIN
    dense = dense_nbytes * (configuration.dense > LEAST_GAIN and num_gpus > 1)
    encoded = load.encoded_nbytes * forward + load.decoded_nbytes * backward
    decoded = load.decoded_nbytes * forward + load.encoded_nbytes * backward
    return encoded + dense * (1 + 1 / num_gpus), decoded + dense * 2


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """The link speed from which a configuration does not pay.

    Args:
        pays: on links `below` gb_s, `always` or `never`.
        gb_s: GB/s between nodes; None but for `below`.
    """

    pays: Literal["below", "always", "never"]
    gb_s: float | None = None


def break_even(saved_s: Callable[[float], float]) -> BreakEven:
    """Return the link speed from which a configuration does not pay.

    Args: saved_s: function from GB/s between nodes to the seconds that a step saves; a faster link
        makes them less.
    """
    if saved_s(LOWEST_GB_S) <= 0:
        return BreakEven(pays="never")
    if saved_s(HIGHEST_GB_S) > 0:
        return BreakEven(pays="always")
    low, high = math.log(LOWEST_GB_S), math.log(HIGHEST_GB_S)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if saved_s(math.exp(middle)) > 0 else (low, middle)
    return BreakEven(pays="below", gb_s=math.exp(low))
