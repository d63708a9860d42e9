"""Packed ids change the bytes of the input dist, which are counted, and nothing else.

Where bags are merged, too, training equals that with unpacked ids bit for bit: what is sent in
another order comes back to its samples, and sums keep their order. That packed ids alone equal
stock TorchRec is held by test_every_sharding.py and test_modules.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torchrec.distributed import dist_data

from tests.integration.embedding.test_every_sharding import SEQUENCE_TABLES, SUM_TABLES, TABLES
from tests.integration.sharded_models.cases import MIX, RW, SEQUENCE_MIX, TW, Case
from tests.integration.sharded_models.training import assert_same, run
from tests.rank_programs import results_of, run_programs
from trec_qcomm import Config, Identity, QComm, TableRule
from trec_qcomm.config import IdRule

pytestmark = pytest.mark.timeout(300)  # the ranks' own limit comes first

FEW, SEQUENCES = SUM_TABLES[:3], SEQUENCE_TABLES[:3]
CASES = {
    "a rank without samples": Case(tables=FEW, sharding=TW, batch=(9, 0)),
    "row_wise": Case(tables=FEW, sharding=RW, batch=(9,)),
    "mix": Case(tables=FEW, sharding=MIX, batch=(9,)),
    "sequence": Case(tables=SEQUENCES, sharding=SEQUENCE_MIX, module="ec", batch=(9, 4)),
    "merged after the lookup": Case(tables=TABLES[1:3], sharding=TW, batch=(9,)),
    "weighted": Case(tables=FEW, sharding=TW, weighted=True, batch=(9,)),
    "bags by feature": Case(tables=FEW, sharding=RW, vbe=True),
    "managed collisions": Case(tables=FEW, sharding=RW, module="mc_ebc"),
}
MERGED = tuple(CASES)[:5]
STEPS = 2


def qcomm_of(*, merged, packed):
    rule = TableRule(
        tables=("*",),
        forward=Identity(),
        backward=Identity(),
        unique_bags="auto" if merged else False,
    )
    return QComm(Config(embedding=(rule,), ids=IdRule(codec="packed") if packed else None))


@contextmanager
def counted_bytes() -> Iterator[list[int]]:
    """Count in one number what TorchRec's input dists give all-to-alls for other ranks."""
    count, rank, size = [0], dist.get_rank(), dist.get_world_size()

    def all_to_all_single(output, input, *args, input_split_sizes=None, **options):
        splits = input_split_sizes or [len(input) // size] * size
        others = sum(splits) - splits[rank]
        count[0] += others * input[:1].numel() * input.element_size()
        splits = {} if input_split_sizes is None else {"input_split_sizes": input_split_sizes}
        return dist.all_to_all_single(output, input, *args, **splits, **options)

    counting = SimpleNamespace(**vars(dist) | {"all_to_all_single": all_to_all_single})
    dist_data.dist = counting
    try:
        yield count
    finally:
        dist_data.dist = dist


def run_case(name):
    """Return the results of packed, merged and packed, and merged; and bytes counted."""
    case = CASES[name]
    with counted_bytes() as packed_nbytes:
        packed = run(case, qcomm_of(merged=False, packed=True), STEPS)
    results = {"packed": packed, "packed_nbytes": packed_nbytes[0]}
    if name in MERGED:
        with counted_bytes() as both_nbytes:
            results["both"] = run(case, qcomm_of(merged=True, packed=True), STEPS)
        results["merged"] = run(case, qcomm_of(merged=True, packed=False), STEPS)
        results["both_nbytes"] = both_nbytes[0]
    return results


@pytest.fixture(scope="module")
def outcomes():
    return run_programs(run_case, 2, {name: name for name in CASES}, timeout_s=250)


@pytest.mark.dist
@pytest.mark.parametrize("name", MERGED)
def test_merged_and_packed_equal_merged_bit_for_bit(outcomes, name):
    ranks = results_of(outcomes[name])
    assert_same(CASES[name], [r["merged"] for r in ranks], [r["both"] for r in ranks])


@pytest.mark.dist
@pytest.mark.parametrize("name", CASES)
def test_stats_are_the_bytes_on_the_wire(outcomes, name):
    for rank, results in enumerate(results_of(outcomes[name])):
        for kind in ("packed", "both") if name in MERGED else ("packed",):
            ids = results[kind].stats["input"]
            assert ids["wire_nbytes"] == results[f"{kind}_nbytes"] > 0
            assert ids["distinct_nbytes"] <= ids["raw_nbytes"]
            if CASES[name].batch_size(rank):  # a message has a header, whatever is in it
                assert ids["wire_nbytes"] < ids["distinct_nbytes"]
        if name in MERGED:
            merged, both = results["merged"].stats["input"], results["both"].stats["input"]
            assert both["distinct_nbytes"] == merged["wire_nbytes"]
            assert both["bags"] == merged["bags"]
