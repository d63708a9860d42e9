"""Model of one training step on a cluster, and the link speed from which coding does not pay.

    step = compute + lookup + encode + decode + ids + forward + backward + dense

One part comes after the other, as in a plain training loop, with two exceptions:
- dense: its all-reduce runs beside a share `overlap` of compute and lookup, because DDP starts it
  bucket by bucket in backward. Only longer time counts.
- ids, with `pipeline`: ids of the next batch travel beside the rest of compute and lookup
  (TrainPipelineSparseDist).

Finding distinct bags, host code and kernel launches take no time here. The codec of our reduction
inside a node is the identity (no `intra:`). TorchRec's reduction there has the codec of the rows.
TorchRec's INT8 counts as if a reduce-scatter could add it.

Knows: plans, links, ratios, speeds. Does not know: where these numbers are from.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from trec_qcomm.ext.planner.cost_model import FLOAT32_NBYTES, Throughput
from trec_qcomm.lab.simulate.plans import PLANS, Cluster, Hops, Load, Model

PARTS = ("compute", "lookup", "encode", "decode", "ids", "forward", "backward", "dense")
WORK = ("compute", "lookup")
PASSES_A_ROW = 3  # read in the lookup; read and written in the update
ID_ROUNDS = 3  # TorchRec sends sizes, lengths, ids
SIZES_AND_ROWS = 2
LEAST_GAIN = 1.01  # of a ratio: below, what a codec does is a copy, and takes no time
LOWEST_GB_S, HIGHEST_GB_S = 1e-4, 1e6  # where a break-even is looked for


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Config, described by its compression of float32 traffic.

    Args:
        name: name of the configuration.
        distinct_share: share of bags, rows and ids that is sent.
        forward, backward, dense: compression ratio of what is sent, frame headers included.
        ids: compression ratio of the ids of distinct bags.
        dense_algorithm: name of our all-reduce's algorithm; None is TorchRec's, the fastest of all.
        dense_intra: compression ratio of a hierarchical all-reduce's first hop, inside a node.
        is_ours: whether partial sums of rows are added as in QComm, else as in TorchRec (plans.py).
        sizes_first: whether a receiver does not know the size of a coded row.
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


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU.

    Args:
        compute_s: seconds of a step without embeddings and communication.
        memory_gb_s: GB/s of memory that lookups reach.
        throughput: speed of any codec.
        overlap: share of compute beside which dense gradients travel.
        pipeline: ids of the next batch travel beside the rest of compute.
    """

    compute_s: float
    memory_gb_s: float
    throughput: Throughput
    overlap: float
    pipeline: bool = False


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

        So encoding and decoding count as communication. Bytes sent beside compute do not count.
        """
        return 1 - sum(self.parts_s[part] for part in WORK) / self.step_s if self.step_s else 0.0


def simulate(
    configuration: Configuration, plan: str, model: Model, cluster: Cluster, device: Device
) -> Step:
    """Return the step of a configuration. Args: plan: a key of PLANS."""
    load = PLANS[plan](
        model, cluster, distinct=configuration.distinct_share, is_ours=configuration.is_ours
    )
    row_nbytes = model.dim * FLOAT32_NBYTES
    lookup_s = PASSES_A_ROW * load.lookups * row_nbytes / (1e9 * device.memory_gb_s)
    work_s = device.compute_s + lookup_s
    ids = Hops(intra=load.ids.intra / configuration.ids, inter=load.ids.inter / configuration.ids)
    ids_s = cluster.all_to_all_s(ids, rounds=ID_ROUNDS)
    dense_nbytes = model.dense_values * FLOAT32_NBYTES
    dense_s = _dense_s(configuration, cluster, dense_nbytes)
    encoded, decoded = _coded_nbytes(configuration, load, dense_nbytes, cluster.num_gpus)
    hidden_ids_s = (1 - device.overlap) * work_s if device.pipeline else 0.0
    rounds = SIZES_AND_ROWS if configuration.sizes_first else 1
    return Step(
        parts_s={
            "compute": device.compute_s,
            "lookup": lookup_s,
            "encode": device.throughput.codec_s(encoded_nbytes=encoded, decoded_nbytes=0),
            "decode": device.throughput.codec_s(encoded_nbytes=0, decoded_nbytes=decoded),
            "ids": max(0.0, ids_s - hidden_ids_s),
            "forward": _rows_s(cluster, load, configuration.forward, rounds),
            "backward": _rows_s(cluster, load, configuration.backward, 1),
            "dense": max(0.0, dense_s - device.overlap * work_s),
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
    return min(coded.values())


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


def break_even(
    saved_s: Callable[[float], float],
) -> tuple[Literal["below", "always", "never"], float | None]:
    """Return on which links a configuration pays, and the GB/s `below` which it pays.

    Args: saved_s: function from GB/s between nodes to the seconds that a step saves, which are
        fewer on a faster link.
    """
    if saved_s(LOWEST_GB_S) <= 0:
        return "never", None
    if saved_s(HIGHEST_GB_S) > 0:
        return "always", None
    low, high = math.log(LOWEST_GB_S), math.log(HIGHEST_GB_S)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if saved_s(math.exp(middle)) > 0 else (low, middle)
    return "below", math.exp(low)
