"""What TorchRec has beyond 1.8: each feature is taken, or refused by name.

A feature of 1.9 runs as it is where that version is tested, and is skipped elsewhere. A feature of
TorchRec's main branch is played by a stand-in, which says so.
"""

import copy
from importlib.util import find_spec
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.futures import Future
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding_sharding import EmbeddingSharding
from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding.grid_sharding import GridPooledEmbeddingSharding
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan, ShardingStrategy
from torchrec.modules.embedding_modules import EmbeddingCollection

from tests.ext.planner.test_planner import BATCH, FREE, NODE, WORLD, tables
from tests.ext.replicas.test_state import Replica, equal
from tests.ext.replicas.two_dim import batch, collection, dense_optimizer, train
from tests.ext.replicas.two_dim import tables as tables_of
from tests.integration.embedding.test_modules import TABLES
from tests.integration.sharded_models.batches import batch as sequence_batch
from tests.integration.sharded_models.cases import GRID, Case, plan
from tests.integration.sharded_models.training import assert_same, exact_qcomm, qcomm_of, run
from tests.integration.test_errors import SEQUENCES, Prioritized, message_of
from tests.rank_programs import results_of, run_programs
from trec_qcomm import QComm, Rowwise
from trec_qcomm.comm import transport
from trec_qcomm.config import Config, TableRule
from trec_qcomm.core.checks import DeferredChecks
from trec_qcomm.lab.ranks.ranks import PlayedRanks

HAS_PEC = find_spec("torchrec.distributed.pec_embedding") is not None
HAS_PLANNER_API = find_spec("torchrec.distributed.planner.api") is not None
STOCK_GRID_TAKES_VARIABLE_BATCHES = (
    GridPooledEmbeddingSharding.uncombined_embedding_dims
    is not EmbeddingSharding.uncombined_embedding_dims
)
VARIABLE = Case(tables=TABLES, sharding=GRID, node_size=2, vbe=True)
SYNC = {"sync": {"codec": {"codec": "identity"}}}


class AsyncSyncPipeline:
    """Stand-in for the main branch's pipeline with async_two_dim_sparse_parallelism_sync.

    Like it, it registers a hook when it is made. The hook starts averages, which the pipeline
    awaits after the next forward.
    """

    def __init__(self, dmp):
        self.dmp, self.pending, self.num_averages = dmp, [], 0
        self.pg = dmp.device_mesh.get_group("replicate")
        self.optimizer = dense_optimizer(dmp)
        dmp.set_all_reduce_hook(self.start)

    def start(self, *arguments):  # the first is a process group, from 1.9 on
        self.num_averages += 1
        for tensor in arguments[-1]:
            self.pending.append((dist.all_reduce(tensor, group=self.pg, async_op=True), tensor))

    def progress(self, step):
        loss = ((self.dmp(batch(step)) - 1) ** 2).sum() / 8
        for work, tensor in self.pending:
            work.wait()
            tensor /= self.pg.size()
        self.pending.clear()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.dmp.sync()


def async_sync():
    """Return what is said of a pipeline made last, and whether one made first trains as without."""

    def start():
        qcomm = QComm.from_dict(SYNC)
        dmp = collection(qcomm)
        return dmp, qcomm.sync(dmp)

    dmp, sync = start()
    dmp.set_all_reduce_hook(sync.hook)
    pipeline = AsyncSyncPipeline(dmp)
    refusal = message_of(lambda: pipeline.progress(0)), pipeline.num_averages
    dmp, sync = start()
    pipeline = AsyncSyncPipeline(dmp)
    dmp.set_all_reduce_hook(sync.hook)
    for step in range(3):
        pipeline.progress(step)
    sync.check()
    straight, straight_sync = start()
    straight.set_all_reduce_hook(straight_sync.hook)
    is_equal = equal(train(straight, range(3))[-1], tables_of(dmp))
    return refusal, (is_equal, pipeline.num_averages, sync.num_calls)


def options_past_hook():
    """Return what is said of each option of DMPCollection, set as its constructor would."""
    messages = []
    for change in (
        lambda dmp: setattr(dmp, "_use_sharded_relay", True),
        lambda dmp: setattr(dmp._ctxs[0], "sharding_strategy", ShardingStrategy.FULLY_SHARDED),
        lambda dmp: dmp._ctxs.append(copy.copy(dmp._ctxs[0])),
    ):
        qcomm = QComm.from_dict(SYNC)
        dmp = collection(qcomm)
        change(dmp)
        messages.append(message_of(lambda qcomm=qcomm, dmp=dmp: qcomm.sync(dmp)))
    return messages


def prioritized():
    """Return what is said where stock's default sharder takes a PECEmbeddingCollection.

    Return also the bytes of a step where ours takes the collection inside it. TorchRec has the
    sharder among the default ones from 1.9 on; 1.8 gets it here.
    """
    from torchrec.distributed.pec_embedding import PECEmbeddingCollectionSharder

    others = [s for s in get_default_sharders() if s.module_type is not EmbeddingCollection]
    if not any(isinstance(s, PECEmbeddingCollectionSharder) for s in others):
        others.append(PECEmbeddingCollectionSharder())

    def step(path, more):
        qcomm = qcomm_of(Rowwise(8))
        arguments = qcomm.dmp_arguments()
        kinds = {sharder.module_type: sharder for sharder in (*more, *arguments["sharders"])}
        arguments["sharders"] = list(kinds.values())
        arguments["plan"] = ShardingPlan({path: plan(SEQUENCES, dist.get_world_size())})
        dmp = DistributedModelParallel(Prioritized(), device=torch.device("cpu"), **arguments)
        dmp(sequence_batch(SEQUENCES, 0, dist.get_rank())).sum().backward()
        return qcomm.stats()

    stats = step("sparse._embedding_collection", [])
    nbytes = stats.embedding_forward.wire_nbytes, stats.embedding_backward.wire_nbytes
    return message_of(lambda: step("sparse", others)), nbytes


def variable_grid():
    return tuple(run(VARIABLE, qcomm, 3) for qcomm in (None, exact_qcomm()))


PROGRAMS = {"async": async_sync, "options": options_past_hook}
PROGRAMS |= {"prioritized": prioritized} if HAS_PEC else {}
PROGRAMS |= {"grid": variable_grid} if STOCK_GRID_TAKES_VARIABLE_BATCHES else {}


def run_program(name):
    return PROGRAMS[name]()


@pytest.fixture(scope="module")
def outcomes():
    return run_programs(run_program, 4, {name: name for name in PROGRAMS}, timeout_s=240)


@pytest.mark.dist
def test_a_hook_in_place_of_ours_is_refused_before_it_averages(outcomes):
    for (message, num_averages), _ in results_of(outcomes["async"]):
        assert "call set_all_reduce_hook(sync.hook) last" in message
        assert "AsyncSyncPipeline.start" in message
        assert "async_two_dim_sparse_parallelism_sync" in message
        assert num_averages == 0


@pytest.mark.dist
def test_our_hook_takes_over_a_pipeline_that_was_made_before(outcomes):
    for _, taken_over in results_of(outcomes["async"]):
        assert taken_over == (True, 0, 6)  # of each sync, a step and its average


@pytest.mark.dist
def test_options_that_average_past_the_hook_are_refused(outcomes):
    expected = "use_sharded_relay", "sharding_strategy FULLY_SHARDED", "submodule_configs"
    for messages in results_of(outcomes["options"]):
        for option, message in zip(expected, messages, strict=True):
            assert message == f"sync: {option} of DMPCollection averages past sync; leave it out"


def stashed(num_before):
    """Return what is said of stashed tables, and whether training goes on once they are back."""
    straight, replica = Replica(), Replica()
    for one in (straight, replica):
        for step in range(num_before):
            one.train(step)
            one.sync.step()
        one.train(num_before)
    messages = []
    for matrix, saved in zip(replica.matrices, replica.copies(), strict=True):
        memory = matrix.untyped_storage()  # as TorchRec does, which keeps its size, too
        nbytes = memory.size()
        memory.resize_(0)
        messages.append(message_of(replica.sync.average))
        if num_before:
            messages.append(message_of(replica.sync.check))
        memory.resize_(nbytes)
        matrix.copy_(saved)
    for one in (straight, replica):
        one.sync.step()
    return messages, equal(straight.copies(), replica.copies())


@pytest.mark.parametrize("num_before", [0, 2])  # the first average is of whole tables
def test_stashed_tables_are_refused_and_restored_ones_averaged(num_before):
    for messages, is_equal in PlayedRanks(2).run(lambda: stashed(num_before)):
        names = ["weights", "sum"] if not num_before else ["weights"] * 2 + ["sum"] * 2
        for name, message in zip(names, messages, strict=True):
            assert message.startswith(f"{name} of table '.0' is stashed; call Memory")
        assert is_equal


@pytest.mark.dist
@pytest.mark.skipif(not HAS_PEC, reason="TorchRec 1.6 has no PECEmbeddingCollection")
def test_a_prioritized_collection_is_not_left_out_in_silence(outcomes):
    for message, nbytes in results_of(outcomes["prioritized"]):
        assert "no table was sharded by this QComm; pass sharders=qcomm.sharders()" in message
        assert min(nbytes) > 0


@pytest.mark.skipif(not HAS_PLANNER_API, reason="TorchRec has this planner from 1.9 on")
def test_the_new_planner_takes_our_estimator_and_sharders():
    from torchrec.distributed.planner.api import ProductionPlannerOrchestrator
    from torchrec.distributed.planner.executor import DefaultPlannerExecutor
    from torchrec.distributed.planner.provider import DefaultPlannerProvider
    from torchrec.distributed.planner.types import PlannerSessionContext, ShardingPlanRequest

    rule = TableRule(tables=("*",), forward=Rowwise(4), backward=Rowwise(4))
    qcomm = QComm(Config(embedding=(rule,)))

    class CodecProvider(DefaultPlannerProvider):
        def _build_perf_estimator(self, sku, topology, constraints, ctx):
            assert isinstance(topology, Topology)
            return qcomm.estimator(topology, constraints, throughput=FREE)

    def planned(provider):
        request = ShardingPlanRequest(
            tables("t"), qcomm.sharders(), WORLD, NODE, BATCH, compute_device="cuda",
            constraints={"t": ParameterConstraints(sharding_types=["table_wise"])},
        )  # fmt: skip
        context = PlannerSessionContext(request=request, results={})
        orchestrator = ProductionPlannerOrchestrator(DefaultPlannerExecutor(provider), "H100")
        return orchestrator.plan(request, context)["H100"]

    stock, ours = planned(DefaultPlannerProvider()), planned(CodecProvider())
    assert (stock.success, ours.success) == (True, True)
    assert ours.comms_critical_path_ms < stock.comms_critical_path_ms / 4


def test_no_callback_of_a_future_runs_on_a_stream_of_the_pool():
    """Future.then takes such a stream if the future has devices; main's own hooks avoid it."""
    chained = []

    class Watched(Future):
        def __init__(self, *, devices=None):
            super().__init__(devices=devices)
            self.watched_devices = devices

        def then(self, callback):
            chained.append(self.watched_devices)
            return super().then(callback)

    def program():
        cpu, result = torch.device("cpu"), torch.ones(3)
        transports = (
            transport.DeviceTransport(dist.group.WORLD, cpu, DeferredChecks()),
            transport.Transport(dist.group.WORLD),
        )
        for one, expected in zip(transports, ([], [None]), strict=True):
            chained.clear()
            future = one.start(iter(()), result, lambda _seconds: None)
            assert future.wait() is result
            assert chained == expected

    with mock.patch.object(transport, "Future", Watched):
        PlayedRanks(1).run(program)


@pytest.mark.dist
def test_a_variable_batch_on_grid_is_stocks_own(outcomes):
    if "grid" not in outcomes:
        assert not STOCK_GRID_TAKES_VARIABLE_BATCHES
        pytest.skip("stock TorchRec takes a variable batch on grid_shard from 1.9 on")
    assert_same(VARIABLE, *zip(*results_of(outcomes["grid"]), strict=True))
