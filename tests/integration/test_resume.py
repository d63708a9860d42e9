"""Interrupt and resume gives the same training, stochastic rounding included."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from tests.integration.small_model import (
    dense_optimizer,
    qcomm_of,
    same_weights,
    shard,
    train,
    weights,
)
from trec_qcomm import Config, GradientRule, QComm, Rowwise, TableRule
from trec_qcomm.comm.dense.error_feedback import owed
from trec_qcomm.testing import run_ranks


def model_and_qcomm():
    qcomm = qcomm_of(Rowwise(2), Rowwise(2, "stochastic"), seed=7)
    return shard(qcomm), qcomm


def straight_and_resumed(folder):
    straight, _ = model_and_qcomm()
    losses = train(straight, dense_optimizer(straight), range(8))

    first, qcomm = model_and_qcomm()
    train(first, dense_optimizer(first), range(4))
    dcp.save({"model": first.state_dict(), "trec_qcomm": qcomm}, checkpoint_id=folder)

    second, qcomm = model_and_qcomm()
    state = {"model": second.state_dict(), "trec_qcomm": qcomm}
    dcp.load(state, checkpoint_id=folder)
    second.load_state_dict(state["model"])
    resumed_state = qcomm.state_dict()
    resumed = train(second, dense_optimizer(second), range(4, 8))

    forgetful, qcomm = model_and_qcomm()
    dcp.load({"model": (model := forgetful.state_dict())}, checkpoint_id=folder)
    forgetful.load_state_dict(model)
    other = train(forgetful, dense_optimizer(forgetful), range(4, 8))
    return {
        "losses": losses,
        "resumed": resumed,
        "without our state": other,
        "same weights": same_weights(weights(straight), weights(second)),
        "state": resumed_state,
        "rank": dist.get_rank(),
    }


@pytest.mark.dist
def test_resumed_training_is_the_same(tmp_path):
    for results in run_ranks(straight_and_resumed, 2, str(tmp_path / "checkpoint")):
        steps = {name: int(step) for name, step in results["state"]["steps"].items()}
        assert steps == {"ebc": 4}
        assert results["resumed"] == results["losses"][4:]
        assert results["same weights"]
        assert results["without our state"] != results["losses"][4:]


def load_foreign_state():
    _, qcomm = model_and_qcomm()
    with pytest.raises(ValueError, match=r"state names x; this model has ebc"):
        qcomm.load_state_dict({"steps": {"x": 1}})
    return torch.tensor(0)


@pytest.mark.dist
def test_state_of_another_model_is_refused():
    run_ranks(load_foreign_state, 1)


# Another number of ranks.


def with_residuals():
    table = TableRule(tables=("*",), forward=Rowwise(8), backward=Rowwise(8))
    dense = GradientRule(codec=Rowwise(2), block=4, min_numel=0, error_feedback=True)
    qcomm = QComm(Config(embedding=(table,), dense=dense))
    return shard(qcomm), qcomm


def owed_by_all_ranks(qcomm):
    """Return {parameter: [n] float64}, the residuals that are owed to the mean."""
    (state,) = qcomm.state_dict()["gradients"]["dense"].values()
    total = {name: owed(sites).double() for name, sites in state["residuals"].items()}
    for residual in total.values():
        dist.all_reduce(residual)
    return total


def saved(folder):
    dmp, qcomm = with_residuals()
    train(dmp, dense_optimizer(dmp), range(3))
    dcp.save({"model": dmp.state_dict(), "trec_qcomm": qcomm}, checkpoint_id=folder)
    return owed_by_all_ranks(qcomm)


def loaded_by_others(folder):
    dmp, qcomm = with_residuals()
    dcp.load({"model": (model := dmp.state_dict())}, checkpoint_id=folder)
    dmp.load_state_dict(model)
    qcomm.load_resized(folder)
    residuals = owed_by_all_ranks(qcomm)
    train(dmp, dense_optimizer(dmp), range(3, 4))
    with pytest.raises(ValueError, match="nothing is saved under 'other'"):
        qcomm.load_resized(folder, key="other")
    return residuals, qcomm.state_dict()["steps"]


@pytest.mark.dist
def test_another_number_of_ranks_goes_on_with_what_all_kept_back(tmp_path):
    folder = str(tmp_path / "checkpoint")
    before, _ = run_ranks(saved, 2, folder)
    assert any(bool(residual.any()) for residual in before.values())
    for after, steps in run_ranks(loaded_by_others, 3, folder):
        assert {name: int(step) for name, step in steps.items()} == {"ebc": 4}
        assert after.keys() == before.keys()
        for name, residual in before.items():
            slack = 2.0**-22 * residual.abs().max()  # spread over 3 ranks in float32
            assert bool(((after[name] - residual).abs() <= slack).all()), name
