"""Work of one GPU in a step under sharding plans, and times of collectives on two link levels.

A message of n bytes takes alpha + n / beta seconds. A GPU sends its messages one after the other on
each level, and on both levels at the same time unless an algorithm says otherwise. A link has the
same speed in both directions at once. The two levels of a hierarchical reduction follow one
another. If a library sends in pieces, the levels overlap, and the reduction takes as little as
half. All GPUs are alike, so only the busiest one is modelled.

There are three plans, as in TorchRec. In tw each table is whole on one GPU. In rw the rows of each
table are split over all GPUs. In twrw each table is on one node, its rows split over the node's
GPUs. All tables have the same plan.

With T tables on U places (GPUs or nodes) the busiest GPU holds ceil(T/U) tables. Its lookups are
what the best balanced placement must leave to one place: the mean, or the largest table. So with
more places than tables most places have nothing to do.

Partial sums of rows are added up by one of two methods. TorchRec's method is a reduce-scatter of
all sums, and in backward an all-gather. If coded, it is coded before and after, also inside a node.
Our method is an all-to-all of coded sums, without sums of no id, which are added after decoding.
Inside a node they are not coded.

Knows: shapes, links. Does not know: codecs, what else a step does.
Shapes: N GPUs, G a node, M = N / G nodes; T tables, D columns, L_t ids a bag; B samples a GPU.
Source: Thakur, Rabenseifner, Gropp 2005 (the model, pairwise all-to-all); Patarasuk, Yuan 2009
(ring); two-shot is an all-to-all, a sum, an all-to-all. TorchRec 1.8's tw_sharding, rw_sharding,
twrw_sharding (who sends what to whom; the codecs of twrw's hop in a node) and comm_ops
(ReduceScatterBase_Req and _Wait: what is coded when; a group of one rank codes nothing).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from trec_qcomm.core.fields import Range, check_fields
from trec_qcomm.ext.planner.cost_model import FLOAT32_NBYTES

ID_NBYTES, LENGTH_NBYTES = 8, 4  # an id; the number of ids of a bag


@dataclass(frozen=True, kw_only=True)
class Link:
    """Network of a rank in the alpha-beta model: n bytes take latency_s + n / (1e9 gb_s) seconds.

    Args: latency_s: seconds a message, >= 0.  gb_s: GB/s, > 0.
    """

    latency_s: Annotated[float, Range(0)] = 5e-5
    gb_s: Annotated[float, Range(0, is_open=True)] = 1.25

    def __post_init__(self) -> None:
        check_fields(self)

    def transfer_s(self, *, num_messages: int, nbytes: float) -> float:
        """Return the seconds to send messages one after the other, of so many bytes together."""
        return num_messages * self.latency_s + nbytes / (1e9 * self.gb_s)


@dataclass(frozen=True, kw_only=True)
class Hops:
    """Bytes that one GPU sends.

    Args:
        intra: bytes to the other GPUs of its node.
        inter: bytes to GPUs of other nodes.
    """

    intra: float = 0.0
    inter: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Cluster of N GPUs in nodes of G.

    Args:
        num_gpus, gpus_per_node: N and G.
        intra: link of a GPU to the other GPUs of its node.
        inter: link of a GPU to other nodes.
    Raises: ValueError: num_gpus that do not fill their nodes; one node may be smaller.
    """

    num_gpus: Annotated[int, Range(1)]
    gpus_per_node: Annotated[int, Range(1)] = 8
    intra: Link
    inter: Link

    def __post_init__(self) -> None:
        check_fields(self)
        if self.num_gpus > self.gpus_per_node and self.num_gpus % self.gpus_per_node:
            raise ValueError(
                f"num_gpus: {self.num_gpus} is neither below gpus_per_node {self.gpus_per_node} "
                "nor a multiple of it"
            )

    @property
    def node_size(self) -> int:
        """Number of GPUs in a node: G, or fewer if the cluster is smaller."""
        return min(self.num_gpus, self.gpus_per_node)

    @property
    def num_nodes(self) -> int:
        """Number M of nodes."""
        return self.num_gpus // self.node_size

    def to_others(self, nbytes: float) -> Hops:
        """Return the bytes that a GPU sends if it has so many for each other GPU."""
        inside, across = self.node_size - 1, self.num_gpus - self.node_size
        return Hops(intra=inside * nbytes, inter=across * nbytes)

    def all_to_all_s(self, sent: Hops, *, rounds: int = 1) -> float:
        """Return the seconds in which each GPU sends every other GPU a message.

        The faster of two algorithms counts:

        direct:        max((G-1) alpha_i + intra / beta_i, (N-G) alpha_x + inter / beta_x)
        hierarchical:  what is for GPU g of another node goes to GPU g of the own node first, so
                       that messages between nodes are M-1:
                       (G-1) alpha_i + (intra + inter (G-1)/G) / beta_i,
                       and then (M-1) alpha_x + inter / beta_x.

        Args:
            sent: bytes of one GPU.
            rounds: number of exchanges that share these bytes, such as sizes and then rows.
        """
        inside, across = self.node_size - 1, self.num_gpus - self.node_size
        direct = max(
            _send_s(self.intra, rounds * inside, sent.intra),
            _send_s(self.inter, rounds * across, sent.inter),
        )
        relayed = sent.intra + sent.inter * inside / self.node_size
        hierarchical = self.inside_s(relayed, rounds=rounds) + self.across_s(
            sent.inter, rounds=rounds
        )
        return min(direct, hierarchical)

    def inside_s(self, nbytes: float, *, rounds: int = 1) -> float:
        """Return the seconds of an all-to-all, reduce-scatter or all-gather within a node.

        Args: nbytes: bytes that a GPU sends.
        """
        return _send_s(self.intra, rounds * (self.node_size - 1), nbytes)

    def across_s(self, nbytes: float, *, rounds: int = 1) -> float:
        """Return the seconds of an all-to-all among the GPUs of equal place in their nodes.

        Args: nbytes: bytes that a GPU sends.
        """
        return _send_s(self.inter, rounds * (self.num_nodes - 1), nbytes)

    def reduce_scatter_s(self, nbytes: float) -> float:
        """Return the seconds until each GPU has the sum of all GPUs' messages to it.

        An all-gather is the same in reverse. The faster of two algorithms counts:

        all-to-all:    N-1 messages, summed where they arrive
        hierarchical:  sums of the node first, (G-1) messages of M n bytes, then M-1 of n between
                       nodes: of these G times fewer

        Args: nbytes: n, bytes of one message as it is sent.
        """
        direct = self.all_to_all_s(self.to_others(nbytes))
        in_node = self.inside_s((self.node_size - 1) * self.num_nodes * nbytes)
        return min(direct, in_node + self.across_s((self.num_nodes - 1) * nbytes))

    def all_reduce_s(self, nbytes: float) -> dict[str, float]:
        """Return the seconds of an all-reduce by algorithm.

        ring:          2 (N-1) messages of n/N on the slowest link of the ring
        two_shot:      twice an all-to-all of n/N for each peer
        hierarchical:  reduce-scatter in the node, ring among M nodes of n/G, all-gather in the node

        Args: nbytes: n, bytes of one GPU's contribution as it is sent.
        """
        slowest = self.inter if self.num_nodes > 1 else self.intra
        in_node = self.inside_s((self.node_size - 1) * nbytes / self.node_size)
        return {
            "ring": _ring_s(slowest, self.num_gpus, nbytes),
            "two_shot": 2 * self.all_to_all_s(self.to_others(nbytes / self.num_gpus)),
            "hierarchical": 2 * in_node
            + _ring_s(self.inter, self.num_nodes, nbytes / self.node_size),
        }


def _send_s(link: Link, num_messages: int, nbytes: float) -> float:
    """Return the seconds of messages; without bytes there are no messages, either."""
    if not nbytes:
        return 0.0
    return link.transfer_s(num_messages=num_messages, nbytes=nbytes)


def _ring_s(link: Link, num: int, nbytes: float) -> float:
    return _send_s(link, 2 * (num - 1), 2 * (num - 1) / num * nbytes)


@dataclass(frozen=True, kw_only=True)
class Model:
    """Recommendation model.

    Args:
        num_ids: L_t, ids of a bag, by table.
        dim: D, columns of every table.
        batch_size: B, samples a GPU.
        dense_values: number of values of all dense layers.
    """

    num_ids: tuple[float, ...]
    dim: int
    batch_size: int
    dense_values: int


@dataclass(frozen=True, kw_only=True)
class Load:
    """Work of the busiest GPU in a step, in one direction; backward is the same in reverse.

    Args:
        lookups: rows that it reads.
        ids: bytes of ids and lengths, sent to the GPU that gets most.
        reduced_nbytes: float32 bytes that it sends in its node before the exchange.
        reduced_coded: whether these bytes are coded by the codec of the rows.
        summed_nbytes: float32 bytes for each GPU in a reduce-scatter among all of them.
        rows: float32 bytes of the exchange.
        across: whether the exchange is among GPUs of equal place in their nodes.
        encoded_nbytes, decoded_nbytes: float32 bytes that pass the codec, including those that the
            GPU sends itself.
    """

    lookups: float
    ids: Hops
    reduced_nbytes: float = 0.0
    reduced_coded: bool = False
    summed_nbytes: float = 0.0
    rows: Hops
    across: bool = False
    encoded_nbytes: float
    decoded_nbytes: float


def table_wise(model: Model, cluster: Cluster, *, distinct: float, is_ours: bool) -> Load:
    """Return the load where a table's GPU sends each GPU the rows of its B samples.

    That is ceil(T/N) B D 4 u bytes for each GPU; u is the distinct share.
    """
    num = cluster.num_gpus
    tables, ids = _busiest(model, num)
    to_each = distinct * model.batch_size * tables * model.dim * FLOAT32_NBYTES
    coded = num > 1 or is_ours
    return Load(
        lookups=num * distinct * model.batch_size * ids,
        ids=cluster.to_others(_ids_nbytes(model, ids, tables, distinct)),
        rows=cluster.to_others(to_each),
        encoded_nbytes=num * to_each * coded,
        decoded_nbytes=_own_nbytes(model, distinct) * coded,
    )


def row_wise(model: Model, cluster: Cluster, *, distinct: float, is_ours: bool) -> Load:
    """Return the load where each GPU has partial sums of all bags.

    That is u B D 4 sum_t e_t bytes for each GPU.

    TorchRec reduce-scatters them, with e_t = 1: N of them are encoded, and one sum is decoded. We
    send them all-to-all, with e_t = 1 - (1 - 1/N)^L_t, the share that has an id, if ids fall
    anywhere.
    """
    num = cluster.num_gpus
    filled = sum(1 - (1 - 1 / num) ** ids if is_ours and num > 1 else 1.0 for ids in model.num_ids)
    to_each = distinct * model.batch_size * filled * model.dim * FLOAT32_NBYTES
    ids = sum(model.num_ids) / num
    coded = to_each if num > 1 or is_ours else 0.0
    return Load(
        lookups=distinct * model.batch_size * sum(model.num_ids),
        ids=cluster.to_others(_ids_nbytes(model, ids, len(model.num_ids), distinct)),
        summed_nbytes=0.0 if is_ours else to_each,
        rows=cluster.to_others(to_each) if is_ours else Hops(),
        encoded_nbytes=num * coded,
        decoded_nbytes=num * coded if is_ours else coded,
    )


def table_row_wise(model: Model, cluster: Cluster, *, distinct: float, is_ours: bool) -> Load:
    """Return the load where partial sums are reduced inside a node first.

    They belong to the whole batch and to ceil(T/M) tables, empty ones included. That is N ceil(T/M)
    B D 4 u (G-1)/G bytes, coded in TorchRec's own reduction. Then each GPU has the sums of M
    batches. It sends each GPU of its place the sums of that GPU's batch, ceil(T/M) B D 4 u bytes.
    """
    tables, ids = _busiest(model, cluster.num_nodes)
    to_each = distinct * model.batch_size * tables * model.dim * FLOAT32_NBYTES
    others = (cluster.node_size - 1) / cluster.node_size
    in_node = to_each if cluster.node_size > 1 and not is_ours else 0.0
    across = cluster.num_nodes > 1 or is_ours
    return Load(
        lookups=cluster.num_nodes * distinct * model.batch_size * ids,
        ids=cluster.to_others(_ids_nbytes(model, ids / cluster.node_size, tables, distinct)),
        reduced_nbytes=cluster.num_gpus * to_each * others,
        reduced_coded=not is_ours,
        rows=Hops(inter=(cluster.num_nodes - 1) * to_each),
        across=True,
        encoded_nbytes=cluster.num_gpus * in_node + cluster.num_nodes * to_each * across,
        decoded_nbytes=cluster.num_nodes * in_node + _own_nbytes(model, distinct) * across,
    )


PLANS: dict[str, Callable[..., Load]] = {"tw": table_wise, "rw": row_wise, "twrw": table_row_wise}


def _busiest(model: Model, num_places: int) -> tuple[int, float]:
    """Return the tables of the place with most tables, and a sample's ids where most are."""
    ids = max(sum(model.num_ids) / num_places, *model.num_ids)
    return math.ceil(len(model.num_ids) / num_places), ids


def _ids_nbytes(model: Model, num_ids: float, num_tables: float, distinct: float) -> float:
    """Return the bytes of ids and lengths in one GPU's batch for another GPU."""
    per_sample = num_ids * ID_NBYTES + num_tables * LENGTH_NBYTES
    return distinct * model.batch_size * per_sample


def _own_nbytes(model: Model, distinct: float) -> float:
    """Return the float32 bytes of the rows of one GPU's batch, all tables."""
    return distinct * model.batch_size * len(model.num_ids) * model.dim * FLOAT32_NBYTES
