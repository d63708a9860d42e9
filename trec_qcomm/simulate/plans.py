"""What a plan of the tables makes one GPU look up, code and send in a step.

Three plans, as TorchRec has them: each table whole on one GPU (tw), the rows of each over all GPUs
(rw), each table on one node and its rows over the GPUs there (twrw). All tables have the same plan.

A GPU is the busiest one: with T tables on U places (GPUs or nodes) it holds ceil(T/U) of them, and
of lookups what the placement that balances them best must leave to somebody: the mean, or the
largest table. So with more places than tables most of them have nothing to do.

Knows: shapes. Does not know: seconds, links, codecs.
Shapes: N GPUs, G a node, M nodes; T tables, D columns, L_t ids a bag; B samples a GPU.
Source: TorchRec's tw_sharding, rw_sharding, twrw_sharding (who sends what to whom).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from trec_qcomm.control.cost_model import FLOAT32_NBYTES
from trec_qcomm.simulate.links import Cluster, Hops

ID_NBYTES, LENGTH_NBYTES = 8, 4  # an id; the number of ids of a bag


@dataclass(frozen=True, kw_only=True)
class Model:
    """Args: num_ids: L_t, by table.  dim: D.  batch_size: B.  dense_values: of all layers."""

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
    """A step's work of the busiest GPU, in one direction; backward is the same in reverse.

    Args:
        lookups: rows that it reads.
        ids: bytes of ids and lengths, of the GPU that gets most.
        reduced_nbytes: float32 that it sends in its node, uncoded, before the exchange.
        rows: float32 bytes of the exchange.  across: it is among GPUs of equal place in nodes.
        encoded_nbytes, decoded_nbytes: float32 that pass the codec, what it sends itself included.
    """

    lookups: float
    ids: Hops
    reduced_nbytes: float = 0.0
    rows: Hops
    across: bool = False
    encoded_nbytes: float
    decoded_nbytes: float


def table_wise(model: Model, cluster: Cluster, *, distinct: float, skips_empty: bool) -> Load:
    """A table's GPU sends each GPU the rows of its B samples: ceil(T/N) B D 4 u bytes."""
    num = cluster.num_gpus
    tables, ids = _busiest(model, num)
    to_each = distinct * model.batch_size * tables * model.dim * FLOAT32_NBYTES
    return Load(
        lookups=num * distinct * model.batch_size * ids,
        ids=_to_all(cluster, _ids_nbytes(model, ids, tables, distinct)),
        rows=_to_all(cluster, to_each),
        encoded_nbytes=num * to_each,
        decoded_nbytes=_own_nbytes(model, distinct),
    )


def row_wise(model: Model, cluster: Cluster, *, distinct: float, skips_empty: bool) -> Load:
    """Each GPU sends each GPU partial sums of all its bags: u B D 4 sum_t e_t bytes.

    e_t = 1, or where those of no id are not sent 1 - (1 - 1/N)^L_t, ids falling anywhere.
    """
    num = cluster.num_gpus
    filled = sum(
        1 - (1 - 1 / num) ** ids if skips_empty and num > 1 else 1.0 for ids in model.num_ids
    )
    to_each = distinct * model.batch_size * filled * model.dim * FLOAT32_NBYTES
    ids = sum(model.num_ids) / num
    return Load(
        lookups=distinct * model.batch_size * sum(model.num_ids),
        ids=_to_all(cluster, _ids_nbytes(model, ids, len(model.num_ids), distinct)),
        rows=_to_all(cluster, to_each),
        encoded_nbytes=num * to_each,
        decoded_nbytes=num * to_each,
    )


def table_row_wise(model: Model, cluster: Cluster, *, distinct: float, skips_empty: bool) -> Load:
    """Inside a node partial sums of the whole batch are reduced, of ceil(T/M) tables, in float32
    and empty ones, too: N ceil(T/M) B D 4 u (G-1)/G bytes. Then each GPU has the sums of M batches
    and sends each GPU of its place its own: ceil(T/M) B D 4 u bytes.
    """
    tables, ids = _busiest(model, cluster.num_nodes)
    to_each = distinct * model.batch_size * tables * model.dim * FLOAT32_NBYTES
    others = (cluster.node_size - 1) / cluster.node_size
    return Load(
        lookups=cluster.num_nodes * distinct * model.batch_size * ids,
        ids=_to_all(cluster, _ids_nbytes(model, ids / cluster.node_size, tables, distinct)),
        reduced_nbytes=cluster.num_gpus * to_each * others,
        rows=Hops(inter=(cluster.num_nodes - 1) * to_each),
        across=True,
        encoded_nbytes=cluster.num_nodes * to_each,
        decoded_nbytes=_own_nbytes(model, distinct),
    )


PLANS: dict[str, Callable[..., Load]] = {
    "tw": table_wise,
    "rw": row_wise,
    "twrw": table_row_wise,
}


def _busiest(model: Model, num_places: int) -> tuple[int, float]:
    """Tables of the place that has most, ids of a sample of the place that has most."""
    ids = max(sum(model.num_ids) / num_places, *model.num_ids)
    return math.ceil(len(model.num_ids) / num_places), ids


def _ids_nbytes(model: Model, num_ids: float, num_tables: float, distinct: float) -> float:
    """Of one GPU's batch for another one."""
    per_sample = num_ids * ID_NBYTES + num_tables * LENGTH_NBYTES
    return distinct * model.batch_size * per_sample


def _own_nbytes(model: Model, distinct: float) -> float:
    """float32 bytes of the rows of one GPU's batch, all tables."""
    return distinct * model.batch_size * len(model.num_ids) * model.dim * FLOAT32_NBYTES


def _to_all(cluster: Cluster, nbytes: float) -> Hops:
    inside, across = cluster.node_size - 1, cluster.num_gpus - cluster.node_size
    return Hops(intra=inside * nbytes, inter=across * nbytes)
