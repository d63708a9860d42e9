"""Equal bags are looked up and sent once: same outputs, same training, fewer bytes, all counted.

Merging may change nothing but the order in which gradients are summed. So with gradients that are
integers, whose float32 sums are exact, training equals stock TorchRec bit for bit; else it is held
against float64 with the bound of a float32 sum in any order. Batches are 40 samples of at most two
ids out of 20 rows or fewer: most bags repeat.
"""

import re
from dataclasses import replace

import pytest

from tests.integration.embedding.test_every_sharding import (
    BY_NODE,
    SEQUENCE_TABLES,
    SUM_TABLES,
    TABLES,
    assert_near,
    node_sizes,
)
from tests.integration.sharded_models.batches import batch
from tests.integration.sharded_models.cases import (
    CW,
    GRID,
    POOLED,
    RW,
    SEQUENCE,
    TW,
    TWCW,
    TWRW,
    Case,
    shards,
)
from tests.integration.sharded_models.expected_traffic import BACKWARD, FORWARD, frames_of
from tests.integration.sharded_models.training import assert_same, run
from tests.rank_programs import results_of, run_programs
from trec_qcomm import Config, Identity, QComm, TableRule
from trec_qcomm.testing import run_ranks

# The ranks' own limit comes first.
pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


def shardings(world_size):
    """Return the pooled shardings to merge bags of; two-level ones with two nodes or more."""
    two_level = (TWRW, GRID, TWCW) if world_size < 4 else ()
    return [kind for kind in POOLED if kind not in ("data_parallel", *two_level)]


def qcomm_of(*choices):
    """Return a QComm of identity codecs. choices: pairs of pattern and unique_bags."""
    rules = [
        TableRule(tables=(p,), forward=Identity(), backward=Identity(), unique_bags=choice)
        for p, choice in choices
    ]
    return QComm(Config(embedding=tuple(rules)))


def merged():
    return qcomm_of(("*", True))


def parity_cases(world_size):
    """Return cases by name, those of two levels with two nodes or more.

    TABLES have both poolings, so that a rank of a table-wise sharding has several kernels, which on
    CPU take no batch size for every feature. Their bags are merged after the lookup.
    """
    cases = {}
    for sharding in shardings(world_size):
        for node_size in node_sizes(sharding, world_size) if sharding in BY_NODE else (0,):
            case = Case(
                tables=SUM_TABLES,
                sharding=sharding,
                node_size=node_size,
                batch=(40,),
                whole_gradients=True,
            )
            cases[f"{sharding}/{node_size}"] = case
    for sharding in (TW, RW):
        adagrad = replace(cases[f"{sharding}/0"], optimizer="rowwise_adagrad")
        cases[f"{sharding}/adagrad"] = adagrad
        cases[f"{sharding}/fused"] = replace(cases[f"{sharding}/0"], module="fused_ebc")
    for sharding in (TW, CW):
        case = replace(cases[f"{sharding}/0"], optimizer="full_adagrad")
        cases[f"{sharding}/full_adagrad"] = case
        cases[f"{sharding}/full_adagrad weighted"] = replace(case, weighted=True)
        cases[f"{sharding}/poolings"] = replace(case, tables=TABLES, batch=(40, 0, 9))
    for sharding in SEQUENCE:
        cases[f"sequence_{sharding}"] = replace(
            case, tables=SEQUENCE_TABLES, sharding=sharding, module="ec", batch=(40, 33)
        )
    return cases


def exact_cases(world_size):
    """Return by name cases that stock cannot run, and weighted bags, which seldom repeat."""
    cases = {}
    for sharding in shardings(world_size):
        case = Case(tables=SUM_TABLES, sharding=sharding, node_size=2, batch=(40, 33))
        cases[f"{sharding}/uneven"] = case
        cases[f"{sharding}/weighted"] = replace(case, weighted=True)
        cases[f"{sharding}/empty"] = replace(case, batch=(9, 0), empty=("b", "e"))
    for sharding in (TW, RW):  # bags that the user merged are left as they are
        cases[f"{sharding}/vbe"] = replace(cases[f"{sharding}/uneven"], vbe=True, empty=("e",))
    return cases


def run_program(program):
    kind, case = program
    if kind == "parity":
        return run(case, None, linear=True), run(case, merged(), linear=True)
    if kind == "exact":
        return run(case, merged(), 1, linear=True)
    qcomm = qcomm_of(("first", True), ("wide", "auto"), ("*", False))
    return run(case, qcomm, 1, linear=True)


@pytest.fixture(scope="module", params=[2, 4])
def outcomes(request):
    jobs = {("parity", n): ("parity", case) for n, case in parity_cases(request.param).items()}
    jobs |= {("exact", name): ("exact", case) for name, case in exact_cases(request.param).items()}
    jobs["choices"] = ("choices", CHOICES)
    return run_programs(run_program, request.param, jobs, timeout_s=500)


CHOICES = Case(tables=SUM_TABLES, sharding=TW, batch=(40, 33))


@pytest.mark.parametrize("name", parity_cases(4))
def test_training_equals_stock_bit_for_bit_where_sums_are_exact(outcomes, name):
    if ("parity", name) not in outcomes:
        pytest.skip("no such node size")
    stock, ours = zip(*results_of(outcomes["parity", name]), strict=True)
    assert_same(parity_cases(4)[name], stock, ours)
    for result in ours:
        bags = result.stats["input"]["bags"]
        assert bags["num_sent"] < bags["num_bags"] or not bags["num_bags"]
    assert any(result.stats["input"]["bags"]["num_bags"] for result in ours)


@pytest.fixture(scope="module")
def outcomes_of_one_rank():
    jobs = {name: ("parity", case) for name, case in parity_cases(1).items()}
    return run_programs(run_program, 1, jobs, timeout_s=300)


@pytest.mark.parametrize("name", parity_cases(1))
def test_one_rank_alone_trains_as_stock_and_sends_nothing(outcomes_of_one_rank, name):
    stock, ours = zip(*results_of(outcomes_of_one_rank[name]), strict=True)
    assert_same(parity_cases(1)[name], stock, ours)
    for kind in ("embedding_forward", "embedding_backward", "input"):
        counts = ours[0].stats[kind]
        assert counts["raw_nbytes"] == counts["wire_nbytes"] == 0


@pytest.mark.parametrize("name", exact_cases(4))
def test_merging_changes_nothing_but_the_order_of_sums(outcomes, name):
    if ("exact", name) not in outcomes:
        pytest.skip("on two nodes only")
    assert_near(exact_cases(4)[name], results_of(outcomes["exact", name]))


def num_distinct(case, rank, feature, shard=None):
    """Count the distinct bags of a rank's first batch, or those with ids in a row-wise shard."""
    jagged = batch(case, 0, rank)[feature]
    weights = jagged.weights_or_none()
    ids = [bag.tolist() for bag in jagged.values().split(jagged.lengths().tolist())]
    parts = weights.split(jagged.lengths().tolist()) if weights is not None else [[]] * len(ids)
    different = {(tuple(bag), str(list(w))) for bag, w in zip(ids, parts, strict=True)}
    if shard is None or case.sharding != RW:
        return len(different)
    rows = range(shard.row, shard.row + shard.num_rows)
    return sum(any(i in rows for i in bag) for bag, _ in different)


@pytest.mark.parametrize("sharding", [TW, CW, RW])
@pytest.mark.parametrize("weighted", [False, True])
def test_one_row_for_each_distinct_bag_is_sent(outcomes, sharding, weighted):
    """Owners send each peer a row for each of its distinct bags, and get as many gradients."""
    name = f"{sharding}/{'weighted' if weighted else 'uneven'}"
    runs, case = results_of(outcomes["exact", name]), exact_cases(4)[name]
    owned = [(t, s) for t in case.tables for s in shards(case, t, len(runs))]
    for rank, result in enumerate(runs):
        expected = {"embedding_forward": 0, "embedding_backward": 0}
        for table, owner in owned:
            for peer in set(range(len(runs))) - {rank}:
                for feature in table.features:
                    if owner.rank == rank:
                        rows = num_distinct(case, peer, feature, owner)
                        expected["embedding_forward"] += rows * owner.num_cols * 4
                    if owner.rank == peer:
                        rows = num_distinct(case, rank, feature, owner)
                        expected["embedding_backward"] += rows * owner.num_cols * 4
        for kind, nbytes in expected.items():
            assert result.stats[kind]["distinct_nbytes"] == nbytes
            assert result.stats[kind]["wire_nbytes"] - result.stats[kind]["header_nbytes"] >= nbytes
        bags = result.stats["input"]["bags"]
        assert bags["num_sent"] < bags["num_bags"]


def all_rows_nbytes(case, rank, world_size):
    """Return the float32 bytes of one step's rows by kind, with no bag merged and none empty."""
    if case.sharding == RW:
        widths = [table.dim * len(table.features) for table in case.tables]
        peers = set(range(world_size)) - {rank}
        forward = sum(case.batch_size(peer) for peer in peers)
        backward = case.batch_size(rank) * len(peers)
        return {FORWARD: 4 * forward * sum(widths), BACKWARD: 4 * backward * sum(widths)}
    return {
        kind: sum(4 * num_rows * dim for frame in frames for _, num_rows, dim in frame)
        for kind, frames in frames_of(case, rank, world_size).items()
    }


# The mixed plan has row-wise tables beside others, whose empty rows frames_of leaves out.
WITHOUT_EMPTY_ROWS = [n for n in parity_cases(4) if not n.startswith(("sequence", "mix"))]


@pytest.mark.parametrize("name", WITHOUT_EMPTY_ROWS)
def test_raw_bytes_are_of_all_bags_where_batches_are_equal(outcomes, name):
    case = parity_cases(4)[name]
    if ("parity", name) not in outcomes or len(case.batch) > 1:
        pytest.skip("no such node size, or batches that differ")
    runs = [ours for _, ours in results_of(outcomes["parity", name])]
    for rank, result in enumerate(runs):
        for kind, nbytes in all_rows_nbytes(case, rank, len(runs)).items():
            counted = result.stats[kind]
            assert counted["raw_nbytes"] == counted["num_calls"] * nbytes, kind
            assert counted["raw_nbytes"] > counted["distinct_nbytes"] or not nbytes


def test_choices_by_table(outcomes):
    runs = results_of(outcomes["choices"])
    assert_near(CHOICES, runs)
    for rank, result in enumerate(runs):
        tables = result.stats["input"]["bags"]["tables"]
        for table in CHOICES.tables:
            bags = CHOICES.batch_size(rank) * len(table.features)
            distinct = sum(num_distinct(CHOICES, rank, f) for f in table.features)
            sent = distinct if table.name in ("first", "wide") else bags
            assert tables[table.name] == {"num_bags": bags, "num_sent": sent}


def refusals():
    """Return the error of each case that cannot be merged; check that auto takes the case."""
    errors = {}
    for name, case in REFUSED.items():
        try:
            run(case, merged(), 1)
            errors[name] = "accepted"
        except ValueError as error:
            errors[name] = str(error)
        stats = run(case, qcomm_of(("*", "auto")), 1).stats
        assert stats["input"]["bags"]["num_bags"] == 0, name
    return errors


_CASE = Case(tables=SUM_TABLES, sharding=RW, batch=(40,))
REFUSED = {
    "FBGEMM's EXACT_ADAGRAD, of .* is none of EXACT_SGD": replace(_CASE, optimizer="full_adagrad"),
    "gradient_clipping, of .* clips": replace(
        _CASE, sharding=TW, fused_params=(("gradient_clipping", True), ("max_gradient", 0.5))
    ),
    "its module does more with ids": replace(_CASE, module="fp_ebc"),
    "its module does more with ids than": replace(_CASE, module="mc_ebc"),
}


def test_true_is_refused_and_auto_is_off_where_merging_is_not_exact():
    (errors,) = run_ranks(refusals, 1)
    for pattern, said in errors.items():
        assert re.search(f"unique_bags: true for table '.*': {pattern}.*allowed here: false", said)
