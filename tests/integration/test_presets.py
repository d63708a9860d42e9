"""Training with configs that ship: those for plans of two levels."""

import pytest
import torch

from tests.integration.embedding.test_every_sharding import SUM_TABLES
from tests.integration.sharded_models.cases import MIX, Case
from tests.integration.sharded_models.training import run
from trec_qcomm import QComm
from trec_qcomm.testing import run_ranks

CASE = Case(tables=SUM_TABLES, sharding=MIX, node_size=2, batch=(64,))


def two_levels():
    """Train on two nodes of two ranks, with the configs of two levels and with fast.yaml."""
    names = ("two_level", "by_node", "fast")
    return [run(CASE, QComm.from_preset(name), 2, linear=True) for name in names]


@pytest.mark.dist
def test_two_level_narrows_the_hop_inside_a_node():
    for two_level, by_node, fast in run_ranks(two_levels, 4, timeout_s=250):
        for kind in ("intra_embedding_forward", "intra_embedding_backward"):
            ours, exact = two_level.stats[kind], fast.stats[kind]
            assert ours["raw_nbytes"] == exact["raw_nbytes"] > 0
            payload = exact["wire_nbytes"] - exact["header_nbytes"]
            assert 2 * (ours["wire_nbytes"] - ours["header_nbytes"]) == payload
        for kind in ("embedding_forward", "embedding_backward"):
            assert two_level.stats[kind]["wire_nbytes"] < two_level.stats[kind]["raw_nbytes"]
        assert by_node.stats["dense"]["raw_nbytes"] > 0
        raw = [by_node.stats[kind]["raw_nbytes"] for kind in ("dense", "intra_dense")]
        assert sum(raw) == fast.stats["dense"]["raw_nbytes"]
        for kind in ("intra_embedding_forward", "intra_embedding_backward"):
            assert by_node.stats[kind]["wire_nbytes"] == two_level.stats[kind]["wire_nbytes"]
        for parts in (*two_level.weights.values(), *by_node.weights.values()):
            assert all(bool(torch.isfinite(weights).all()) for _, _, weights in parts)
