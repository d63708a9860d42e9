"""Whole trainings with `sizes: slots`: the weights of `sizes: announced`, bit by bit."""

import pytest
import torch

from tests.integration import small_model
from tests.rank_programs import results_of, run_programs
from trec_qcomm import QComm

RANS = {"codec": "error_bounded", "bound": 0.02, "encoder": "rans"}
CONFIG = {
    "embedding": [{"tables": "*", "forward": RANS, "backward": RANS, "unique_bags": "auto"}],
    "dense": {"codec": {"codec": "threshold", "threshold": 0.02}, "error_feedback": True,
              "block": 1, "min_numel": 1},
    "data_parallel": {"codec": {"codec": "error_bounded", "bound": 0.02}},
}  # fmt: skip


def trained(sizes):
    """Return losses, weights and traffic of a training with an evaluation and a bypass in it."""
    qcomm = QComm.from_dict(CONFIG | {"sizes": sizes})
    dmp = small_model.shard(qcomm)
    optimizer = small_model.dense_optimizer(dmp)
    losses = small_model.train(dmp, optimizer, range(4))
    with torch.no_grad():
        dmp(small_model.batch(4, 6))
    with qcomm.bypass():
        losses += small_model.train(dmp, optimizer, range(5, 7))
    losses += small_model.train(dmp, optimizer, range(7, 10))
    return losses, small_model.weights(dmp), qcomm.stats().to_dict()


def both(_):
    return [trained(sizes) for sizes in ("announced", "slots")]


@pytest.mark.dist
def test_slots_change_no_bit_of_a_training():
    outcome = run_programs(both, 2, {"both": None}, timeout_s=200)["both"]
    for announced, in_slots in results_of(outcome):
        assert in_slots[0] == announced[0]
        assert small_model.same_weights(in_slots[1], announced[1])
        for kind in ("embedding_forward", "embedding_backward", "dense", "data_parallel"):
            ours, theirs = in_slots[2][kind], announced[2][kind]
            assert ours["num_overflows"] > 0, kind  # the first exchange has no history
            assert theirs["num_overflows"] == theirs["padding_nbytes"] == 0
            payload = theirs["wire_nbytes"] - theirs["header_nbytes"]
            assert ours["wire_nbytes"] - ours["header_nbytes"] - ours["padding_nbytes"] == payload
