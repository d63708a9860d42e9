"""Modes of training: evaluation, checkpointed activations, gradient division, torch.compile, the
training pipeline, also over merged bags and packed ids. With identity all equals stock bit for bit.
"""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from tests.integration.embedding.test_every_sharding import NARROW_TABLES, SUM_TABLES, TABLES
from tests.integration.embedding.test_packed_ids import qcomm_of as merging
from tests.integration.sharded_models.batches import batch
from tests.integration.sharded_models.cases import (
    CPU,
    DP,
    MIX,
    RW,
    SEQUENCE_MIX,
    TW,
    Case,
    Model,
    full_table,
)
from tests.integration.sharded_models.expected import assembled, updated
from tests.integration.sharded_models.training import (
    RankResult,
    assert_same,
    dense_optimizer,
    qcomm_of,
    run,
    shard,
    train,
    weights,
)
from tests.rank_programs import results_of, run_programs
from trec_qcomm import Identity

# The ranks' own limit comes first.
pytestmark = [pytest.mark.dist, pytest.mark.timeout(900)]

POOLED = Case(tables=TABLES, sharding=MIX, node_size=2)
UNPOOLED = Case(tables=NARROW_TABLES, sharding=SEQUENCE_MIX, module="ec")
MODELS = {"pooled": POOLED, "sequence": UNPOOLED}


def evaluated(case, qcomm):
    """Training with evaluations between the steps."""
    dmp = shard(case, qcomm)
    outputs = train(dmp, case, 2, linear=False)
    dmp.eval()
    with torch.no_grad():
        for step in (7, 8):
            rows_by_key = dmp(batch(case, step, dist.get_rank()))
            assert not any(rows.requires_grad for rows in rows_by_key.values())
            outputs.append(rows_by_key)
    dmp.train()
    outputs += train(dmp, case, 2, linear=False)
    return RankResult(outputs, weights(dmp, case), {})


class CheckpointedModel(Model):
    """Model whose dense part, or all of it, is computed a second time in backward."""

    def __init__(self, case, part):
        super().__init__(case)
        self.part = part

    def forward(self, features):
        if self.part == "all":
            return checkpoint(super().forward, features, use_reentrant=False)
        return checkpoint(self.scaled, self.rows(features), use_reentrant=False)


def checkpointed(part):
    def run_it(case, qcomm):
        return run(case, qcomm, 3, model=CheckpointedModel(case, part))

    return run_it


def undivided(case, qcomm):
    set_gradient_division(False)
    try:
        return run(case, qcomm, 1, linear=True)
    finally:
        set_gradient_division(True)


class PipelineModel(Model):
    """Model that returns (loss, outputs) and can be traced.

    Where gradients are whole, all are 1 and scales stay as they are, so that sums are exact.
    """

    def __init__(self, case):
        super().__init__(case)
        self.sequence, self.whole = case.sequence, case.whole_gradients

    def forward(self, features):
        rows_by_key = self.sparse(features)
        outputs, loss = {}, torch.zeros(())
        for key, scale in self.scale.items():
            rows = rows_by_key[key].values() if self.sequence else rows_by_key[key]
            if self.whole:
                outputs[key], loss = rows, loss + rows.sum() + 0 * scale.sum()
                continue
            outputs[key] = rows * scale
            loss = loss + (outputs[key] ** 2).sum() / 64
        return loss, outputs


def pipelined(case, qcomm, *, detach_before=None):
    """Args: detach_before: a step before which the model is called beside the pipeline, once."""
    dmp = shard(case, qcomm, PipelineModel(case))
    pipeline = TrainPipelineSparseDist(dmp, dense_optimizer(dmp), CPU)
    batches = iter([batch(case, step, dist.get_rank()) for step in range(5)])
    outputs = []
    for step in range(5):
        if step == detach_before:
            with torch.no_grad():
                pipeline.detach()(batch(case, step, dist.get_rank()))
        outputs.append(pipeline.progress(batches))
    return RankResult([detached(rows) for rows in outputs], weights(dmp, case), stats_of(qcomm))


def unpipelined(case, qcomm):
    dmp = shard(case, qcomm, PipelineModel(case))
    optimizer, outputs = dense_optimizer(dmp), []
    for step in range(5):
        loss, rows = dmp(batch(case, step, dist.get_rank()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outputs.append(detached(rows))
    return RankResult(outputs, weights(dmp, case), stats_of(qcomm))


def detached(outputs):
    return {key: rows.detach().clone() for key, rows in outputs.items()}


def stats_of(qcomm):
    return qcomm.stats().to_dict() if qcomm is not None else {}


MODES = {
    "evaluated": evaluated,
    "checkpointed dense": checkpointed("dense"),
    "checkpointed all": checkpointed("all"),
    "undivided": undivided,
    "pipelined": pipelined,
    "unpipelined": unpipelined,
}


def run_program(program):
    mode, case = program
    if mode == "merged":
        return merged(case)
    train_in = compiled if mode == "compiled" else MODES[mode]
    return train_in(case, None), train_in(case, qcomm_of(Identity()))


def compiled(case, qcomm):
    """Under torch.compile our collectives run outside of the graphs; stock sharders run eagerly."""
    dmp = shard(case, qcomm)
    model = dmp if qcomm is None else torch.compile(dmp, backend="eager")
    return RankResult(train(model, case, 3, linear=False), weights(dmp, case), {})


def merged(case):
    """Train with equal bags merged: by hand, in the pipeline, called beside it, and packed."""
    return [
        unpipelined(case, merging(merged=True, packed=False)),
        pipelined(case, merging(merged=True, packed=False)),
        pipelined(case, merging(merged=True, packed=False), detach_before=3),
        pipelined(case, merging(merged=True, packed=True)),
    ]


MERGED = {
    "pooled": replace(POOLED, tables=SUM_TABLES, batch=(40,), whole_gradients=True),
    "sequence": replace(UNPOOLED, batch=(40,), whole_gradients=True),
}
COMPILED = {  # of two tables, a feature each and two: torch.compile takes seconds for each feature
    "pooled": replace(POOLED, tables=TABLES[1:3], sharding=RW),
    "sequence": replace(UNPOOLED, tables=NARROW_TABLES[1:3], sharding=TW),
}


@pytest.fixture(scope="module")
def outcomes():
    """Modes of pooled rows on two nodes of two ranks, the rest on two ranks."""
    modes = {(mode, "pooled"): (mode, POOLED) for mode in MODES}
    jobs = {(mode, "sequence"): (mode, UNPOOLED) for mode in MODES}
    jobs |= {("merged", name): ("merged", case) for name, case in MERGED.items()}
    jobs |= {("compiled", name): ("compiled", case) for name, case in COMPILED.items()}
    return {
        name: outcome
        for world_size, programs in ((4, modes), (2, jobs))
        for name, outcome in run_programs(run_program, world_size, programs, timeout_s=600).items()
    }


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mode", MODES)
def test_identity_equals_stock_bit_for_bit(outcomes, mode, name):
    assert_same(MODELS[name], *zip(*results_of(outcomes[mode, name]), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_pipelined_training_equals_unpipelined_and_is_counted_alike(outcomes, name):
    pipelined, plain = (results_of(outcomes[mode, name]) for mode in ("pipelined", "unpipelined"))
    assert_same(MODELS[name], [ours for _, ours in plain], [ours for _, ours in pipelined])
    for (_, a), (_, b) in zip(pipelined, plain, strict=True):
        for kind in a.stats:
            assert a.stats[kind]["wire_nbytes"] == b.stats[kind]["wire_nbytes"], kind


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_undivided_where_torchrec_is_told_so(outcomes, name):
    case, pairs = MODELS[name], results_of(outcomes["undivided", name])
    batches = [batch(case, 0, rank) for rank in range(len(pairs))]
    initial = {table.name: full_table(table) for table in case.tables}
    expected = updated(case, initial, batches, divisor=1)
    for table in case.tables:
        if case.kind(table) != DP:  # DDP always averages
            whole = assembled(table, [p for _, ours in pairs for p in ours.weights[table.name]])
            assert expected[table.name].holds(whole), table.name


@pytest.mark.parametrize("name", MERGED)
def test_a_pipeline_merges_and_packs_as_training_by_hand(outcomes, name):
    runs = zip(*results_of(outcomes["merged", name]), strict=True)
    by_hand, in_pipeline, detached_once, packed = map(list, runs)
    for results in (in_pipeline, detached_once, packed):
        assert_same(MERGED[name], by_hand, results)
    for plain, piped, small in zip(by_hand, in_pipeline, packed, strict=True):
        nbytes, expected, fewer = (
            {kind: counted["wire_nbytes"] for kind, counted in result.stats.items()}
            for result in (piped, plain, small)
        )
        assert nbytes == expected
        assert 0 < fewer["input"] < nbytes["input"]
        assert fewer | {"input": nbytes["input"]} == nbytes
        bags = piped.stats["input"]["bags"]
        assert bags["num_sent"] < bags["num_bags"]


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_model_trains_as_stock(outcomes, name):
    assert_same(COMPILED[name], *zip(*results_of(outcomes["compiled", name]), strict=True))
