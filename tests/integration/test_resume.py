"""Interrupt and resume gives the same training, stochastic rounding included."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

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


NO_STATE = [
    (3, "state: expected what state_dict\\(\\) returned, got 3"),
    ({}, r"state: steps is missing; expected what state_dict\(\) returned: steps, params, grad"),
    ({"x": 1}, "state: unknown: x; expected"),
    ({"steps": 3}, "state: steps: expected what state_dict"),
    ({"steps": {}, "params": {"x": {}}}, "state of ranks: unknown: x; .*returned: rank0of1"),
    ({"steps": {}, "gradients": 3}, "state: gradients: expected what"),
    ({"steps": {}, "gradients": {"dense": {"rank0of1": {}}}}, "rank0of1: num_steps is missing"),
    ({"steps": {}, "config": "{"}, "config: no text of a config"),
    ({"steps": {"x": 1}}, "state names x; this model has ebc"),
]  # fmt: skip


def load_foreign_state():
    _, qcomm = with_residuals()
    for state, message in NO_STATE:
        before = qcomm.state_dict()
        with pytest.raises(ValueError, match=message):
            qcomm.load_state_dict(state)
        assert repr(qcomm.state_dict()) == repr(before)
    return torch.tensor(0)


@pytest.mark.dist
def test_state_of_another_model_is_refused():
    run_ranks(load_foreign_state, 1)


# Another number of ranks.


def with_residuals(bits=8, on_resize="sum", **changes):
    table = TableRule(tables=("*",), forward=Rowwise(bits), backward=Rowwise(8))
    dense = GradientRule(
        codec=Rowwise(2), block=4, min_numel=0, error_feedback=True, on_resize=on_resize
    )
    qcomm = QComm(Config(**{"embedding": (table,), "dense": dense, "source": "my.yaml"} | changes))
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
    owed_now = owed_by_all_ranks(qcomm)
    changed_configs(folder, owed_now)
    return owed_now


def changed_configs(folder, owed_before):
    """Load the checkpoint of the same ranks with configs that differ in nothing, little, much."""
    _, qcomm = with_residuals(measure_error=True)
    dcp.load({"trec_qcomm": qcomm}, checkpoint_id=folder)
    dmp, qcomm = with_residuals(bits=4, seed=3)
    message = (
        r"my\.yaml: the state is of another config: embedding\[0\]\.forward\.bits: 8 -> 4; "
        r"seed: 0 -> 3; to go on .*allow_changed_config=True"
    )
    for load in (
        lambda: dcp.load({"model": dmp.state_dict(), "trec_qcomm": qcomm}, checkpoint_id=folder),
        lambda: qcomm.load_resized(folder),
    ):
        with pytest.raises(ValueError, match=message):
            load()
    assert int(qcomm.state_dict()["steps"]["ebc"]) == 0
    qcomm.load_resized(folder, allow_changed_config=True)
    assert int(qcomm.state_dict()["steps"]["ebc"]) == 3
    owed_now = owed_by_all_ranks(qcomm)
    assert owed_now.keys() == owed_before.keys()
    assert all(torch.equal(owed_now[name], owed_before[name]) for name in owed_before)


def loaded_by_others(folder):
    dmp, qcomm = with_residuals()
    missing = (
        r"Missing key .*trec_qcomm\.gradients\.dense\.rank\dof3 \(another number .*: load_resized"
    )
    with pytest.raises(CheckpointException, match=missing):
        dcp.load({"trec_qcomm": qcomm}, checkpoint_id=folder)
    dcp.load({"model": (model := dmp.state_dict())}, checkpoint_id=folder)
    dmp.load_state_dict(model)
    qcomm.load_resized(folder)
    residuals = owed_by_all_ranks(qcomm)
    train(dmp, dense_optimizer(dmp), range(3, 4))
    _, reset = with_residuals(on_resize="reset")
    reset.load_resized(folder, allow_changed_config=True)
    assert not any(bool(residual.any()) for residual in owed_by_all_ranks(reset).values())
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
