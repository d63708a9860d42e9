"""Schedules, classes and thresholds move tolerances of real exchanges, and survive a checkpoint."""

import math

import pytest
import torch
import torch.distributed as dist

from tests.integration.sharded_models.batches import batch
from tests.integration.sharded_models.cases import RW, TW, Case, Table
from tests.integration.sharded_models.training import shard, train
from trec_qcomm import Config, ErrorBounded, Identity, QComm, TableRule, TopK
from trec_qcomm.ext.dct.refresh import ThresholdRefresh
from trec_qcomm.ext.dual_level.error_bound import OnlineClasses
from trec_qcomm.ext.dual_level.schedule import Drop, Exponential
from trec_qcomm.integration.checkpoint import rank_key
from trec_qcomm.integration.tolerances import ForwardTolerances
from trec_qcomm.testing import run_ranks

BOUND, START, DROP_AT = 2.0**-7, 4.0, 2
TABLES = (Table("spread", 16, ("a",), 20), Table("dense", 16, ("b",), 20))
NUM_STEPS = 4


def qcomm_of(**options):
    rule = TableRule(tables=("*",), backward=Identity(), **options)
    return QComm(Config(embedding=(rule,), measure_error=True))


def errors_by_step(sharding):
    """Return the largest error of a sent value in each step, and in an evaluation after it.

    The run has a schedule.
    """
    case = Case(tables=TABLES, sharding=sharding, batch=(40,))
    qcomm = qcomm_of(
        forward=ErrorBounded(BOUND, mode="abs"), schedule=Drop(start=START, end_step=DROP_AT)
    )
    dmp = shard(case, qcomm)
    errors = []
    for step in range(NUM_STEPS):
        bound = BOUND * START if step < DROP_AT else BOUND
        assert qcomm.forward_params() == {"spread": bound, "dense": bound}
        qcomm.reset_stats()
        train(dmp, case, 1, linear=True)
        trained = _largest_error(qcomm)
        qcomm.reset_stats()
        with torch.no_grad():
            dmp(batch(case, 0, dist.get_rank()))
        errors.append((trained, _largest_error(qcomm)))
    return errors


def _largest_error(qcomm):
    tables = qcomm.stats().to_dict()["embedding_forward"]["tables"].values()
    return max(t["max_abs_err"] for t in tables if t["max_abs_err"] is not None)


def classes_found():
    """Return the state after two steps, and the sizes of the next one, resumed and not."""
    case = Case(tables=TABLES, sharding=TW, batch=(40,), max_length=1)
    options = {
        "forward": ErrorBounded(1e-3),
        "classes": OnlineClasses(
            every=100, tight=1e-5, base=1e-3, loose=0.3, tight_below=0.1, loose_from=0.2
        ),
    }
    first = qcomm_of(**options)
    dmp = shard(case, first)
    before = [_forward_nbytes(first, dmp, case) for _ in range(2)]
    state = first.state_dict()
    second = qcomm_of(**options)
    second.load_state_dict(state)
    twin = shard(case, second)
    twin.load_state_dict(dmp.state_dict())
    after = [_forward_nbytes(q, d, case) for q, d in ((first, dmp), (second, twin))]
    unmeasured = qcomm_of(**options)
    unmeasured.load_state_dict({"steps": state["steps"]})
    third = shard(case, unmeasured)
    tight = _forward_nbytes(unmeasured, third, case)
    params = first.forward_params()
    results = {"before": before, "state": state["params"], "after": after, "tight": tight}
    return results | {"params": params}


def _forward_nbytes(qcomm, dmp, case):
    qcomm.reset_stats()
    train(dmp, case, 1, linear=True)
    return qcomm.stats().embedding_forward.wire_nbytes


def everything():
    return {TW: errors_by_step(TW), RW: errors_by_step(RW), "classes": classes_found()}


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(everything, 2, timeout_s=240)


@pytest.mark.dist
@pytest.mark.parametrize(("sharding", "num_summands"), [(TW, 1), (RW, 2)])
def test_a_schedule_moves_the_bound(ranks, sharding, num_summands):
    """The bound moves for partial sums of a row-wise table, too, divided by the number of ranks."""
    bound = BOUND / num_summands
    for results in ranks:
        for step, (trained, evaluated) in enumerate(results[sharding]):
            factor = START if step < DROP_AT else 1.0
            for error in (trained, evaluated):
                assert bound * factor / 4 < error <= bound * factor


@pytest.mark.dist
def test_each_rank_has_classes_of_its_own_which_survive_a_checkpoint(ranks):
    """All rows stay apart, so what a rank sends is loose from the first step on.

    Step 2 measures nothing: its bounds are those of the checkpoint, without which they are tight.
    """
    for rank, results in enumerate(ranks):
        classes_of_rank = results["classes"]
        (by_collective,) = classes_of_rank["state"].values()
        assert list(classes_of_rank["state"]) == [rank_key(rank, 2)]
        classes = sorted(
            int(n) for c in by_collective.values() for t in c.values() for n in t.values()
        )
        assert classes == [-1, 2]  # the other rank's table, and its own
        assert sorted(classes_of_rank["params"].values()) == pytest.approx([1e-5, 0.3])
        first, second = classes_of_rank["after"]
        assert first == second < classes_of_rank["tight"] / 2
        assert max(classes_of_rank["before"]) < classes_of_rank["tight"] / 2


def test_rows_have_the_density_of_the_step_that_looks():
    falling = Exponential(start=8, end_step=30)
    refresh = ThresholdRefresh(every=10, density=0.1, schedule=falling)
    rule = TableRule(
        tables=("*",), forward=TopK(threshold=0.0), backward=Identity(), refresh=refresh
    )
    tolerances = ForwardTolerances({"t": rule}, ["t"])
    rows = torch.arange(1.0, 1001.0).view(250, 4)
    for step in range(41):
        if tolerances.tables_due(step):
            tolerances.measure("t", rows, step)
        kept = int((rows >= tolerances.by_table(step)["t"]).sum())
        assert kept == math.ceil(refresh.density_at(step // 10 * 10) * 1000)
    assert kept == 100
