"""Trainings with the debugger for the tests beside, with and without planted faults."""

from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
import torch.distributed as dist
from torchrec.distributed.sharding_plan import row_wise

from tests.integration.small_model import (
    batch,
    default_plan,
    dense_optimizer,
    same_weights,
    shard,
    train,
    weights,
)
from trec_qcomm import (
    Config,
    ErrorBounded,
    Float6,
    GradientRule,
    Identity,
    QComm,
    Rowwise,
    TableGradientRule,
    TableRule,
    Threshold,
)
from trec_qcomm.lab.debug.rule import DebugRule

STEPS, FAULT_STEP = 5, 2
BASE = Config(
    embedding=(
        TableRule(tables="*", forward=ErrorBounded(0.01), backward=Rowwise(8, "stochastic")),
    ),
    dense=GradientRule(codec=Float6(), block=8, min_numel=8, error_feedback=True),
    data_parallel=TableGradientRule(codec=Rowwise(8)),
)
SHADOWS = (Rowwise(2), ErrorBounded(0.1))


def run(name_and_folder):
    name, folder = name_and_folder
    return globals()[name](folder)


def rules(tables, **codecs):
    """Return BASE with other codecs for some tables."""
    (rule,) = BASE.embedding
    return replace(BASE, embedding=(replace(rule, tables=tables, **codecs), rule))


def sharded(config, rows=False, **options):
    qcomm = QComm(config)
    plan = default_plan() | ({"tw_first": row_wise()} if rows else {})
    dmp = shard(qcomm, plan=plan, **options)
    return qcomm, dmp, dense_optimizer(dmp)


def observers(qcomm):
    """Return how many observers collectives and all-reduces have."""
    session = qcomm._session
    of_gradients = [g._reduction.observer for g in session.gradients.values()]
    return sum(len(c.observers) for c in session.collectives), sum(
        observer is not None for observer in of_gradients
    )


def same_bits(folder):
    """Train with and without; rows of the tables are captured at the same time."""
    qcomm, dmp, optimizer = sharded(BASE, rows=True)
    state = torch.get_rng_state()
    losses = train(dmp, optimizer, range(STEPS))
    watched, dmp_watched, optimizer = sharded(
        replace(BASE, debug=DebugRule(every=2, shadow=SHADOWS, folder=str(folder))), rows=True
    )
    assert torch.equal(torch.get_rng_state(), state)
    losses_watched = train(dmp_watched, optimizer, range(2))
    capture = watched.capture_rows(1)  # step 2, which is measured, too
    losses_watched += train(dmp_watched, optimizer, range(2, STEPS))
    num_observers = [observers(qcomm), observers(watched)]
    counted, counted_watched = (q.stats().to_dict() for q in (qcomm, watched))
    with torch.no_grad():
        dmp_watched(batch(1, 3))  # an evaluation is not measured
    with pytest.raises(ValueError, match="debug: a debugger is at work already"):
        watched.debug().__enter__()
    watched.session.extensions["debug"].stop()
    refused(watched)
    return {
        "same": losses == losses_watched and same_weights(weights(dmp), weights(dmp_watched)),
        "bytes": [
            {kind: entry["wire_nbytes"] for kind, entry in counts.items() if "wire_nbytes" in entry}
            for counts in (counted, counted_watched)
        ],
        "observers": [*num_observers, observers(watched)],
        "rows": {t: [b.clone() for b in blocks] for t, blocks in capture.rows.items()},
        "records": watched.session.extensions["debug"].records,
        "summary": watched.debug_summary(),
    }


def refused(qcomm):
    """Ask for what cannot be measured."""
    with pytest.raises(ValueError, match=r"debug.tables: 'x\*' matches no table and no dense"):
        qcomm.debug(tables=["cw", "x*"]).__enter__()
    with pytest.raises(ValueError, match=r"debug.shadow\[0\]: table 'cw': rows of 8 values"):
        qcomm.debug(tables=["cw*", "over.*"], shadow=[OnlyWide()]).__enter__()
    assert observers(qcomm) == (0, 0)


@dataclass(frozen=True)
class OnlyWide(Identity):
    def check_dim(self, dim):
        if dim < 16:
            raise ValueError(f"rows of {dim} values")


def watched_training(folder, config, plant, *, steps=STEPS):
    """Train with a fault that `plant(dmp, step)` makes before a step; measure every step."""
    qcomm, dmp, optimizer = sharded(config)
    with qcomm.debug(folder, every=1):
        for step in range(steps):
            with plant(dmp, step) or _nothing():
                train(dmp, optimizer, range(step, step + 1))
    return qcomm.debug_summary()


@contextmanager
def _nothing():
    yield


def no_fault(folder):
    return watched_training(folder, BASE, lambda dmp, step: None)


def scaled_table(folder):
    def plant(dmp, step):
        if step == FAULT_STEP:
            for part in weights_of(dmp, "tw_first"):
                part.mul_(1000)

    return watched_training(folder, BASE, plant, steps=FAULT_STEP + 2)


def weights_of(dmp, table):
    for name, value in dmp.state_dict().items():
        if f".{table}." in name and hasattr(value, "local_shards"):
            yield from (shard.tensor for shard in value.local_shards())


@contextmanager
def _hooked(tensor, change):
    handle = tensor.register_hook(change)
    try:
        yield
    finally:
        handle.remove()


def nan_gradient(folder):
    def plant(dmp, step):
        if step == FAULT_STEP and dist.get_rank() == 1:
            parameter = dict(dmp.named_parameters())["over.weight"]
            return _hooked(parameter, lambda grad: grad.index_fill(1, torch.tensor([3]), torch.nan))
        return None

    return watched_training(folder, BASE, plant, steps=FAULT_STEP + 2)


def heavy_tail(folder):
    """Let one column of a table's gradients be far larger than the others, with 2 bits."""

    def plant(dmp, step):
        with torch.no_grad():  # column 5 of tw_first, which begins the pooled values
            weight = dict(dmp.named_parameters())["over.weight"]
            if step == FAULT_STEP:
                weight[0, 5] = 100.0

    config = rules("tw_first", backward=Rowwise(2))
    return watched_training(folder, config, plant, steps=FAULT_STEP + 2)


def loose_bound(folder):
    config = rules("cw", forward=ErrorBounded(0.1))
    return watched_training(folder, config, lambda dmp, step: None, steps=3)


def growing_residual(folder):
    codec = Threshold(1e6)
    config = replace(BASE, dense=replace(BASE.dense, codec=codec))
    return watched_training(folder, config, lambda dmp, step: None, steps=7)


def attribution(folder):
    """Ask which table's codec costs most; the row-wise one has 2 bits, the others 8."""
    config = rules("tw_first", forward=Rowwise(2))
    (bad, rule) = config.embedding
    config = replace(config, embedding=(bad, replace(rule, forward=Rowwise(8, "stochastic"))))
    qcomm, dmp, optimizer = sharded(config, rows=True)
    _, dmp_other, optimizer_other = sharded(config, rows=True)
    losses = train(dmp, optimizer, range(2)), train(dmp_other, optimizer_other, range(2))
    assert losses[0] == losses[1]
    state, counted = torch.get_rng_state(), qcomm.stats()
    drawn = []

    def loss_of(features):
        drawn.append(float(torch.rand(())))
        return ((dmp(features) - 1) ** 2).sum() / 8

    result = qcomm.attribute(loss_of, batch(1, 6))
    same = qcomm.stats() == counted and torch.equal(torch.get_rng_state(), state)
    more = train(dmp, optimizer, range(2, 4)) == train(dmp_other, optimizer_other, range(2, 4))
    return {"result": result, "same": same, "goes_on": more, "drawn": drawn}
