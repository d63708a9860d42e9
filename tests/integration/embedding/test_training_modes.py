"""Modes of training: evaluation, checkpointed activations, gradient division, the training
pipeline, data-parallel tables. With identity all equals stock bit for bit.
"""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from tests.integration.embedding.test_every_sharding import NARROW_TABLES, TABLES
from tests.integration.sharded_models.batches import batch
from tests.integration.sharded_models.cases import (
    CPU,
    DP,
    GRID,
    LEARNING_RATE,
    MIX,
    RW,
    SEQUENCE,
    SEQUENCE_MIX,
    TW,
    TWRW,
    Case,
    Model,
    full_table,
    local_tables,
    output_keys,
)
from tests.integration.sharded_models.expected import assembled, incidence, updated
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
from trec_qcomm import Cast, Identity, Rowwise

pytestmark = pytest.mark.timeout(900)  # the ranks' own limit comes first

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
    """Model that returns (loss, outputs) and can be traced."""

    def __init__(self, case):
        super().__init__(case)
        self.sequence = case.sequence

    def forward(self, features):
        rows_by_key = self.sparse(features)
        outputs, loss = {}, torch.zeros(())
        for key, scale in self.scale.items():
            rows = rows_by_key[key].values() if self.sequence else rows_by_key[key]
            outputs[key] = rows * scale
            loss = loss + (outputs[key] ** 2).sum() / 64
        return loss, outputs


def pipelined(case, qcomm):
    dmp = shard(case, qcomm, PipelineModel(case))
    pipeline = TrainPipelineSparseDist(dmp, dense_optimizer(dmp), CPU)
    batches = iter([batch(case, step, dist.get_rank()) for step in range(5)])
    outputs = [pipeline.progress(batches) for _ in range(5)]
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
    mode, *arguments = program
    if mode == "bf16":
        return all_1e5(*arguments)
    if mode == "stats":
        return run(*arguments, qcomm_of(Rowwise(4)), 2).stats
    (case,) = arguments
    return MODES[mode](case, None), MODES[mode](case, qcomm_of(Identity()))


def all_1e5(case):
    """Every weight and every gradient is 1e5: infinite in fp16, 195 * 512 in bf16."""
    dmp = shard(case, qcomm_of(Cast("bf16")))
    for _, parts in local_tables(dmp.state_dict(), case):
        for _, _, tensor in parts:
            tensor.fill_(1e5)
    outputs = dmp(batch(case, 0, dist.get_rank()))
    sum((rows * 1e5).sum() for rows in outputs.values()).backward()
    return RankResult([detached(outputs)], weights(dmp, case), {})


ONE_ID_TABLES = tuple(replace(table, features=(table.name,)) for table in NARROW_TABLES[:3])
BF16 = {
    f"{module} {sharding}": Case(
        tables=ONE_ID_TABLES, sharding=sharding, module=module, node_size=1, max_length=1
    )
    for module, shardings in (("ebc", (TW, RW, TWRW, GRID)), ("ec", SEQUENCE))
    for sharding in shardings
}
STATS = {"data_parallel": replace(POOLED, sharding=DP), "mix": POOLED}


@pytest.fixture(scope="module", params=[2, 4])
def outcomes(request):
    jobs = {(mode, name): (mode, case) for mode in MODES for name, case in MODELS.items()}
    jobs |= {("bf16", name): ("bf16", case) for name, case in BF16.items()}
    jobs |= {("stats", name): ("stats", case) for name, case in STATS.items()}
    return run_programs(run_program, request.param, jobs, timeout_s=600)


@pytest.mark.dist
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mode", MODES)
def test_identity_equals_stock_bit_for_bit(outcomes, mode, name):
    assert_same(MODELS[name], *zip(*results_of(outcomes[mode, name]), strict=True))


@pytest.mark.dist
@pytest.mark.parametrize("name", MODELS)
def test_pipelined_training_equals_unpipelined_and_is_counted_alike(outcomes, name):
    pipelined, plain = (results_of(outcomes[mode, name]) for mode in ("pipelined", "unpipelined"))
    assert_same(MODELS[name], [ours for _, ours in plain], [ours for _, ours in pipelined])
    for (_, a), (_, b) in zip(pipelined, plain, strict=True):
        for kind in a.stats:
            assert a.stats[kind]["wire_nbytes"] == b.stats[kind]["wire_nbytes"], kind


@pytest.mark.dist
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


@pytest.mark.dist
@pytest.mark.parametrize("name", BF16)
def test_bf16_is_no_fp16(outcomes, name):
    case, runs = BF16[name], results_of(outcomes["bf16", name])
    rounded = 195 * 512.0
    batches = [batch(case, 0, rank) for rank in range(len(runs))]
    uses = {table: torch.zeros(table.num_rows) for table in case.tables}
    for key, table, feature in output_keys(case):
        for result, features in zip(runs, batches, strict=True):
            matrix = incidence(case, table, feature, features).float()
            expected = (matrix.sum(1, keepdim=True) * rounded).expand(-1, table.dim)
            assert torch.equal(result.outputs[0][key], expected)
            uses[table] += matrix.sum(0)
    for table in case.tables:
        whole = assembled(table, [part for result in runs for part in result.weights[table.name]])
        expected = 1e5 - LEARNING_RATE * uses[table] * rounded / len(runs)
        assert torch.equal(whole, expected[:, None].expand(-1, table.dim))


@pytest.mark.dist
@pytest.mark.parametrize("name", STATS)
def test_data_parallel_tables_are_counted(outcomes, name):
    case, stats = STATS[name], results_of(outcomes["stats", name])
    numel = sum(t.num_rows * t.dim for t in case.tables if case.kind(t) == DP)
    dense = sum(table.dim for _, table, _ in output_keys(case))
    num_ranks, num_steps = len(stats), 2
    for counted in stats:
        for kind, values in (("data_parallel", numel), ("dense", dense)):
            nbytes = num_steps * (2 * (num_ranks - 1) * values * 4 // num_ranks)
            assert counted[kind]["wire_nbytes"] == counted[kind]["raw_nbytes"] == nbytes > 0
