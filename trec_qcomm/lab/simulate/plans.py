"""Sharding plans: what they make one GPU look up, code and send in a step.

Three plans, as TorchRec has them: each table whole on one GPU (tw), the rows of each over all GPUs
(rw), each table on one node and its rows over the GPUs there (twrw). All tables have the same plan.

A GPU is the busiest one: with T tables on U places (GPUs or nodes) it holds ceil(T/U) of them, and
of lookups what the placement that balances them best must leave to somebody: the mean, or the
largest table. So with more places than tables most of them have nothing to do.

Partial sums of rows are added up by one of two methods. TorchRec's own: a reduce-scatter, backward
an all-gather, of all sums, coded if at all before it and after it; in a node, too. Ours: an
all-to-all of coded sums without those of no id, which are added after decoding; in a node they are
not coded.

Knows: shapes. Does not know: seconds, links, codecs.
Shapes: N GPUs, G a node, M nodes; T tables, D columns, L_t ids a bag; B samples a GPU.
Source: TorchRec 1.8's tw_sharding, rw_sharding, twrw_sharding (who sends what to whom; the codecs
of twrw's hop in a node) and comm_ops (ReduceScatterBase_Req and _Wait: what is coded when; a group
of one rank codes nothing).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from trec_qcomm.ext.planner.cost_model import FLOAT32_NBYTES
from trec_qcomm.lab.simulate.links import Cluster, Hops

ID_NBYTES, LENGTH_NBYTES = 8, 4  # an id; the number of ids of a bag


@dataclass(frozen=True, kw_only=True)
class Model:
    """A recommendation model.

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

    def __post_init__(self) -> None:
        if not self.num_ids or not all(0 < ids < math.inf for ids in self.num_ids):
            raise ValueError("num_ids: expected one finite number > 0 for each table")
        for name, least in (("dim", 1), ("batch_size", 1), ("dense_values", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: {getattr(self, name)} is not an integer >= {least}")


@dataclass(frozen=True, kw_only=True)
class Load:
    """Work of the busiest GPU in a step, in one direction; backward is the same in reverse.

    Args:
        lookups: rows that it reads.
        ids: bytes of ids and lengths, sent to the GPU that gets most.
        reduced_nbytes: float32 bytes that it sends in its node before the exchange.
        reduced_coded: whether those are coded by the codec of the rows.
        summed_nbytes: float32 bytes for each GPU in a reduce-scatter among all of them.
        rows: float32 bytes of the exchange.
        across: whether the exchange is among GPUs of equal place in their nodes.
        encoded_nbytes, decoded_nbytes: float32 bytes that pass the codec, with what it sends
            itself.
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

    That is ceil(T/N) B D 4 u bytes for each GPU, of which u is the distinct share.
    """
    num = cluster.num_gpus
    tables, ids = _busiest(model, num)
    to_each = distinct * model.batch_size * tables * model.dim * FLOAT32_NBYTES
    coded = num > 1 or is_ours
    return Load(
        lookups=num * distinct * model.batch_size * ids,
        ids=_to_all(cluster, _ids_nbytes(model, ids, tables, distinct)),
        rows=_to_all(cluster, to_each),
        encoded_nbytes=num * to_each * coded,
        decoded_nbytes=_own_nbytes(model, distinct) * coded,
    )


def row_wise(model: Model, cluster: Cluster, *, distinct: float, is_ours: bool) -> Load:
    """Return the load where each GPU has partial sums of all bags.

    That is u B D 4 sum_t e_t bytes for each GPU.

    TorchRec's own reduce-scatters them, e_t = 1: N of them are encoded, one sum is decoded. Ours
    sends them all-to-all: e_t = 1 - (1 - 1/N)^L_t are of some id, ids falling anywhere.
    """
    num = cluster.num_gpus
    filled = sum(1 - (1 - 1 / num) ** ids if is_ours and num > 1 else 1.0 for ids in model.num_ids)
    to_each = distinct * model.batch_size * filled * model.dim * FLOAT32_NBYTES
    ids = sum(model.num_ids) / num
    coded = to_each if num > 1 or is_ours else 0.0
    return Load(
        lookups=distinct * model.batch_size * sum(model.num_ids),
        ids=_to_all(cluster, _ids_nbytes(model, ids, len(model.num_ids), distinct)),
        summed_nbytes=0.0 if is_ours else to_each,
        rows=_to_all(cluster, to_each) if is_ours else Hops(),
        encoded_nbytes=num * coded,
        decoded_nbytes=num * coded if is_ours else coded,
    )


def table_row_wise(model: Model, cluster: Cluster, *, distinct: float, is_ours: bool) -> Load:
    """Return the load where partial sums are reduced inside a node first.

    These are of the whole batch and of ceil(T/M) tables, with empty ones: N ceil(T/M) B D 4 u
    (G-1)/G bytes, coded in TorchRec's own reduction. Then each GPU has the sums of M batches and
    sends each GPU of its place the sums of that GPU's batch: ceil(T/M) B D 4 u bytes.
    """
    tables, ids = _busiest(model, cluster.num_nodes)
    to_each = distinct * model.batch_size * tables * model.dim * FLOAT32_NBYTES
    others = (cluster.node_size - 1) / cluster.node_size
    in_node = to_each if cluster.node_size > 1 and not is_ours else 0.0
    across = cluster.num_nodes > 1 or is_ours
    return Load(
        lookups=cluster.num_nodes * distinct * model.batch_size * ids,
        ids=_to_all(cluster, _ids_nbytes(model, ids / cluster.node_size, tables, distinct)),
        reduced_nbytes=cluster.num_gpus * to_each * others,
        reduced_coded=not is_ours,
        rows=Hops(inter=(cluster.num_nodes - 1) * to_each),
        across=True,
        encoded_nbytes=cluster.num_gpus * in_node + cluster.num_nodes * to_each * across,
        decoded_nbytes=cluster.num_nodes * in_node + _own_nbytes(model, distinct) * across,
    )


PLANS: dict[str, Callable[..., Load]] = {
    "tw": table_wise,
    "rw": row_wise,
    "twrw": table_row_wise,
}


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


def _to_all(cluster: Cluster, nbytes: float) -> Hops:
    inside, across = cluster.node_size - 1, cluster.num_gpus - cluster.node_size
    return Hops(intra=inside * nbytes, inter=across * nbytes)
