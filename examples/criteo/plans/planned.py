"""Plans that TorchRec's planner makes, with our codecs or TorchRec's own estimate.

Knows: the planner. Does not know: plan files beyond their `cluster`, the data.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import (
    EmbeddingPerfEstimator,
    EmbeddingStorageEstimator,
)
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from plans.files import Cluster
from trec_qcomm import Throughput

RESERVED = 0.15  # share of the memory for everything but tables


def make_plan(
    model: nn.Module,
    cluster: Cluster,
    *,
    sharders: list[ModuleSharder[Any]],
    qcomm: Any,
    batch_size: int,
    world_size: int,
    ranks_per_node: int,
    device_type: str,
    measured: Path | None = None,
    pipeline: bool = False,
) -> ShardingPlan:
    """Return the plan that the planner finds best; `qcomm` None is TorchRec's own estimate.

    Args:
        measured: file of what was measured of the tables, see QComm.estimator.
        pipeline: whether ids travel beside the rest of a step.

    Collective where a process group exists: rank 0 plans, so that all ranks have one plan.
    """
    topology = Topology(
        world_size=world_size,
        local_world_size=ranks_per_node,
        compute_device=device_type,
        inter_host_bw=cluster.inter_node_gb_s * 1e6,  # bytes a ms
        intra_host_bw=cluster.intra_node_gb_s * 1e6,
    )
    estimator = _perf_estimator(topology, cluster, qcomm, measured, pipeline)
    estimators = [estimator, EmbeddingStorageEstimator(topology)]
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        enumerator=EmbeddingEnumerator(topology, batch_size, estimator=estimators),
        storage_reservation=FixedPercentageStorageReservation(RESERVED),
        debug=False,
    )
    with _quiet():
        if dist.is_initialized():
            return planner.collective_plan(model, sharders, dist.GroupMember.WORLD)
        return planner.plan(model, sharders)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warning that the planner gives for every data-parallel table."""
    root = logging.getLogger()
    level = root.level
    root.setLevel("ERROR")
    try:
        yield
    finally:
        root.setLevel(level)


def _perf_estimator(
    topology: Topology, cluster: Cluster, qcomm: Any, measured: Path | None, pipeline: bool
) -> EmbeddingPerfEstimator:
    if qcomm is None:
        return EmbeddingPerfEstimator(topology)
    speed = None
    if cluster.encode_gb_s is not None and cluster.decode_gb_s is not None:
        speed = Throughput(encode_gb_s=cluster.encode_gb_s, decode_gb_s=cluster.decode_gb_s)
    options = {} if measured is None else {"measured": measured, "pipeline": pipeline}
    return qcomm.estimator(topology, throughput=speed, **options)
