"""Trainings whose codecs change, by hand and by a guard, for the tests beside."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torchrec.distributed.sharding_plan import row_wise
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from tests.integration.small_model import (
    CPU,
    Model,
    batch,
    default_plan,
    dense_optimizer,
    same_weights,
    shard,
    train,
    weights,
)
from trec_qcomm import (
    Cast,
    Config,
    ErrorBounded,
    ForwardMask,
    GuardError,
    Identity,
    QComm,
    Rowwise,
    TableRule,
)
from trec_qcomm.lab.guard.rule import GuardRule

TABLES = ("cw", "cw_shared", "tw_first", "tw_last")  # dp is not sent
NOISY, FINER = Rowwise(2, "stochastic"), Rowwise(8, "stochastic")


def run(name_and_folder):
    name, folder = name_and_folder
    return globals()[name](folder)


def config_of(forward, backward=NOISY, *, tables="*", guard=None, **options):
    rules = [TableRule(tables=tables, forward=forward, backward=backward)]
    if tables != "*":
        rules.append(TableRule(tables="*", forward=Identity(), backward=backward))
    return Config(embedding=rules, guard=guard or GuardRule(), **options)


def sharded(config):
    """Return a QComm, a model with a row-wise table, and an optimizer."""
    qcomm = QComm(config)
    dmp = shard(qcomm, plan=default_plan() | {"tw_first": row_wise()})
    return qcomm, dmp, dense_optimizer(dmp)


def use(qcomm, forward, backward, tables=TABLES):
    codecs = {"forward": forward, "backward": backward}
    qcomm._session.collectives.use_codecs(dict.fromkeys(tables, codecs))


def go_on_from(qcomm, dmp, other_qcomm, other_dmp):
    """Give another model the weights and numbers of steps of a first one."""
    other_dmp.load_state_dict(dmp.state_dict())
    ours = other_qcomm.state_dict()
    other_qcomm.load_state_dict(ours | {"steps": qcomm.state_dict()["steps"]})


CHANGES = {
    "fixed to varying": (Rowwise(2), ErrorBounded(0.001)),
    "varying to fixed": (ErrorBounded(0.1), Rowwise(4)),
    "varying to varying": (ErrorBounded(0.1), ErrorBounded(0.01)),
}


def train_by_hand(dmp, optimizer, in_flight=lambda: None):
    """Train one step, and call a function between its forward and its backward."""
    loss = ((dmp(batch(1, 6)) - 1) ** 2).sum() / 8
    optimizer.zero_grad()
    in_flight()
    loss.backward()
    optimizer.step()


def changed(folder):
    """Change codecs after two steps, with a step's backward still to come; compare the rest."""
    same = {}
    for name, (before, after) in CHANGES.items():
        guard = GuardRule(ladder=[Rowwise(2), ErrorBounded(0.1), Rowwise(4), ErrorBounded(0.001)])
        guard = replace(guard, backward_ladder=[NOISY, Rowwise(4, "stochastic")])
        qcomm, dmp, optimizer = sharded(config_of(before, guard=guard))
        _, dmp_before, optimizer_before = sharded(config_of(before, guard=guard))
        losses = [
            train(d, o, range(1)) for d, o in ((dmp, optimizer), (dmp_before, optimizer_before))
        ]
        # The backward is by the codecs that its forward began with.
        train_by_hand(dmp, optimizer, partial(use, qcomm, after, Rowwise(4, "stochastic")))
        train_by_hand(dmp_before, optimizer_before)
        in_flight = losses[0] == losses[1] and same_weights(weights(dmp), weights(dmp_before))
        from_start = config_of(after, Rowwise(4, "stochastic"), guard=guard)
        qcomm_after, dmp_after, optimizer_after = sharded(from_start)
        go_on_from(qcomm, dmp, qcomm_after, dmp_after)
        losses = [
            train(d, o, range(2, 4)) for d, o in ((dmp, optimizer), (dmp_after, optimizer_after))
        ]
        same[name] = {
            "in flight": in_flight,
            "after": losses[0] == losses[1] and same_weights(weights(dmp), weights(dmp_after)),
            "differs": losses[0] != train(dmp_before, optimizer_before, range(2, 4)),
        }
    return same


def loss_of(qcomm, dmp, added=None):
    """Return a loss that is 1 with exact rows, and more with others.

    It is more by `added`, or by a squared error with its noise, and infinite if that is large.
    """

    def loss(features):
        out = dmp(features)
        with qcomm.bypass():
            exact = dmp(features)
        torch.rand(())  # as dropout would
        error = float(((out - exact) ** 2).mean())
        if added is not None:
            return 1 + added * (error > 0)
        return 1 + (math.inf if error > LARGE else error)

    return loss


def guarded(config, folder=None, added=None, **options):
    """Return a QComm, model and optimizer, and a guard that probes one batch."""
    qcomm, dmp, optimizer = sharded(config)
    file = None if folder is None else f"{folder}/guard.jsonl"
    loss = loss_of(qcomm, dmp, added)
    guard = qcomm.guard(loss, [batch(100, 6)], file=file, **options)
    return qcomm, dmp, optimizer, guard


def train_guarded(dmp, optimizer, guard, steps):
    losses, events = [], []
    for step in steps:
        losses += train(dmp, optimizer, range(step, step + 1))
        events += guard.step()
    return losses, events


EPISODE = GuardRule(
    every=1, limit_ne=0.1, raise_after=2, lower_after=2, patience=2, ladder=[NOISY, FINER]
)
LARGE = 1e-7  # error of the coarse codec, not of the finer one
COARSE = config_of(NOISY, tables="tw_last", guard=EPISODE)
FIRST_TRIP = 4  # the fourth reading is the first that may show a finite change


def told(events):
    return [(e.event, e.reason, e.table, e.direction, e.codec_after, e.step) for e in events]


def episode(folder):
    """Let one table be too coarse, twice; compare with a training without a guard until then."""
    qcomm, dmp, optimizer, guard = guarded(COARSE, folder, 0.01, run="mine")
    unwatched, dmp_unwatched, optimizer_unwatched = sharded(replace(COARSE, guard=None))
    random = torch.get_rng_state()
    losses, nothing = train_guarded(dmp, optimizer, guard, range(FIRST_TRIP - 1))
    same_random = torch.equal(random, torch.get_rng_state())
    same_losses = losses == train(dmp_unwatched, optimizer_unwatched, range(FIRST_TRIP - 1))
    stats = [replace_times(q.stats().to_dict()) for q in (qcomm, unwatched)]
    _, events = train_guarded(dmp, optimizer, guard, range(FIRST_TRIP - 1, FIRST_TRIP + 4))
    return {
        "before": nothing,
        "traceless": (same_losses, same_random, stats[0] == stats[1]),
        "events": told(events),
        "codecs": guard.codecs["tw_last"]["forward"],
        "in force": qcomm._session.collectives.rules.rule_for("tw_last").forward,
    }


def replace_times(stats):
    """Return statistics without seconds."""
    if not isinstance(stats, dict):
        return stats
    return {key: replace_times(value) for key, value in stats.items() if not key.endswith("_s")}


def resumed(folder):
    """Save in the middle of an episode, and go on from it in another QComm."""
    qcomm, dmp, optimizer, guard = guarded(COARSE)
    train_guarded(dmp, optimizer, guard, range(1))
    dcp.save({"model": dmp.state_dict(), "trec_qcomm": qcomm}, checkpoint_id=folder)
    straight = train_guarded(dmp, optimizer, guard, range(1, 4)), guard.state_text()
    resized, _, _ = sharded(COARSE)
    resized.load_resized(folder)
    qcomm, dmp, optimizer = sharded(COARSE)
    state = {"model": dmp.state_dict(), "trec_qcomm": qcomm}
    dcp.load(state, checkpoint_id=folder)
    dmp.load_state_dict(state["model"])
    rules = [q._session.collectives.rules for q in (qcomm, resized)]
    in_force = [repr(of_session.rule_for("tw_last").forward) for of_session in rules]
    with torch.no_grad():  # which draws no noise of a probe's
        dmp(batch(50, 6))
    guard = qcomm.guard(loss_of(qcomm, dmp), [batch(100, 6)])
    again = train_guarded(dmp, optimizer, guard, range(1, 4)), guard.state_text()
    return {"same": straight == again, "events": told(again[0][1]), "in force": in_force}


def pipelined(folder):
    """Guard a pipeline, where the next batch's ids are under way at a probe, and a plain loop."""
    plain = Model.forward
    Model.forward = lambda self, features: (
        (loss := ((plain(self, features) - 1) ** 2).sum() / 8),
        loss.detach(),
    )
    try:
        return [guarded_loop(is_pipelined) for is_pipelined in (True, False)]
    finally:
        Model.forward = plain


def guarded_loop(is_pipelined):
    qcomm, dmp, optimizer = sharded(COARSE)
    steps = range(4)
    batches = iter([batch(step, 4) for step in steps])
    pipeline = TrainPipelineSparseDist(dmp, optimizer, CPU) if is_pipelined else None

    def loss(features):
        model = dmp if pipeline is None else pipeline.detach()
        return loss_of(qcomm, lambda features: model(features)[1])(features)

    guard = qcomm.guard(loss, [batch(100, 4)])
    losses, events = [], []
    for _ in steps:
        if pipeline is not None:
            losses.append(float(pipeline.progress(batches)))
        else:
            value, _ = dmp(next(batches))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            losses.append(float(value.detach()))
        events += guard.step()
    return losses, told(events)


def signals(folder):
    """Let a bound be pointless, gradients be infinite after a codec, and others be NaN."""
    limits = replace(EPISODE, limit_ne=1e9, ladder=None)
    tight = config_of(ErrorBounded(1e-9), tables="tw_last", guard=limits)
    _, dmp, optimizer, guard = guarded(tight)
    _, pointless = train_guarded(dmp, optimizer, guard, range(2, 3))
    outcomes = {"pointless": told(pointless)}

    half = config_of(Identity(), Cast("fp16"), guard=limits)
    _, dmp, _, guard = guarded(half, added=0.0)
    (dmp(batch(1, 6)) * 1e30).sum().backward()
    outcomes["unencodable"] = told(guard.step())

    for answer in ("raise", "error"):
        rule = replace(EPISODE, limit_ne=1e9, on_nan=answer)
        _, dmp, _, guard = guarded(config_of(Rowwise(8), tables="cw", guard=rule))
        (dmp(batch(1, 6)) * float("nan")).sum().backward()
        if answer == "raise":
            outcomes["nan"] = told(guard.step())
    with pytest.raises(GuardError, match="guard: ") as error:
        guard.step()
    outcomes |= {"error": str(error.value), "parts": in_parts()}
    return outcomes


def in_parts():
    """Return the readings of a batch of 6 samples in 3 parts, and two errors."""
    qcomm, dmp, optimizer = sharded(config_of(Rowwise(8), guard=GuardRule(every=1, limit_ne=100)))
    num_samples = 6

    def loss(features):
        added = torch.arange(num_samples) + dist.get_rank()
        return 1 + added.view(-1, 1) * (loss_of(qcomm, dmp, 0.01)(features) - 1)

    guard = qcomm.guard(loss, [batch(100, 6)], parts=3)
    train_guarded(dmp, optimizer, guard, range(1))
    readings = json.loads(guard.state_text())["policy"]["readings"]
    if dist.get_rank() == 1:
        guard.load(guard.state_text().replace('"num_steps": 1,', '"num_steps": 2,'))
    with pytest.raises(ValueError, match="guard: ranks are not in step") as step:
        guard.step()
    num_samples = 2
    with pytest.raises(ValueError, match="loss_fn") as loss_fn:
        guard.step()
    return readings[-1], str(step.value), str(loss_fn.value)


def bad_input(folder):
    """Ask for guards that cannot be, and train without the calls of one."""
    messages = {}

    def note(name, call):
        with pytest.raises(ValueError, match=r"\w") as caught:
            call()
        messages[name] = str(caught.value)

    rank = dist.get_rank()
    config = config_of(Rowwise(8), guard=GuardRule(every=2, tables=["tw_last", "cw"]))
    qcomm = QComm(config)
    note("unsharded", lambda: qcomm.guard(float, [1]))
    qcomm, dmp, optimizer = sharded(config)
    note("numbers", lambda: qcomm.guard(float, [1] * (1 + rank)))
    note("parts", lambda: qcomm.guard(float, [1], parts=0))
    note("numbers of parts", lambda: qcomm.guard(float, [1], parts=1 + rank))
    note("none", lambda: qcomm.guard(float, []))
    note("function", lambda: qcomm.guard(None, [1]))
    note("without", lambda: train(dmp, optimizer, range(17)))
    guard = qcomm.guard(lambda features: torch.zeros(2), [1])
    train(dmp, optimizer, range(20))  # may be micro-batches of one optimizer step
    guard.step()
    note("shape", guard.step)
    note("second", lambda: qcomm.guard(float, [1]))
    note("table", lambda: use(qcomm, Identity(), Identity(), ["dp"]))
    note("masks", lambda: use(qcomm, Identity(), ForwardMask(), ["cw"]))
    in_force = qcomm._session.collectives.rules.rule_for("cw")
    assert in_force == config.rule_for("cw")
    note("patterns", lambda: guarded(replace(config, guard=GuardRule(tables=["dp"]))))
    note("no rule", lambda: guarded(replace(config, guard=None)))
    return messages
