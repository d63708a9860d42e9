"""zionex.py: digests that see a difference, verdicts of known numbers, parts at toy size."""

import json
from dataclasses import replace

import pytest

from examples.papers import zionex
from examples.papers.claims import FAILS, HOLDS, OPEN
from examples.papers.parts import Request
from examples.papers.sharded import cases, digests, lookups, verdicts
from trec_qcomm.config import load_preset
from trec_qcomm.lab import records
from trec_qcomm.lab.records import NetworkRecord

PLACE = ["--ranks", "2", "--plan", "row_wise"]


@pytest.fixture(scope="module")
def exact():
    return digests.digest(PLACE, load_preset("fp32"))


def test_digest_is_that_of_the_bits(exact):
    assert digests.digest(PLACE, load_preset("fp32")) == exact
    assert digests.stock_digest(PLACE) == exact
    assert digests.digest(PLACE, load_preset("fp32"), seed=1) != exact
    assert digests.digest(PLACE, load_preset("fp16_bf16")) != exact


def test_four_shardings_in_one_model(monkeypatch):
    """The plan has all four, and in float32 TorchRec's bits."""
    kinds = set()
    original = digests.shard

    def seen(*arguments):
        trainer = original(*arguments)
        for plan in trainer.dmp.plan.plan.values():
            kinds.update(parameter.sharding_type for parameter in plan.values())
        return trainer

    monkeypatch.setattr(digests, "shard", seen)
    assert cases.four_cases(Request())["stock"]() == {"fp32": 1, "another_config": 1}
    assert kinds == {"table_wise", "row_wise", "column_wise", "data_parallel"}


def test_lookups_of_fp16_send_half_the_bytes():
    whole, half, refused = (lookups.uncoded_nbytes(dtype) for dtype in lookups.DTYPES)
    assert whole == 2 * half > 0
    assert refused == 0  # FBGEMM's lookups for CPU do not give BF16


def test_a_pair_that_differs_is_told():
    same = {"fp32": 1.0, "best": 1.0, "another_seed": 1.0}
    measured = dict.fromkeys(cases.PLAYED, same)
    first, second = cases.PLAYED[:2]
    told = [
        verdicts.repeats(measured | changed)[0]
        for changed in (
            {},
            {first: same | {"best": 0.0}},
            {first: same | {"another_seed": 0.0}},
            {first: same | {"best": cases.REFUSED}},
        )
    ]
    assert [claim.verdict for claim in told] == [HOLDS, FAILS, OPEN, HOLDS]
    assert "28 of 28 pairs" in told[0].result
    assert f"not best ({first})" in told[1].result
    assert f"best ({first})" in told[3].result
    (part,) = verdicts.repeats({first: same})
    assert part.verdict == OPEN
    assert second in part.to_tell


def test_planner_is_faster_only_beyond_what_equal_plans_differ():
    def verdict(planned_s, dealt_again_s):
        values = {"planned_s": planned_s, "dealt_s": 1.0, "dealt_again_s": dealt_again_s}
        dealt, greedy = verdicts.planner({"fast, 1gbit": values | {"greedy_s": 2.0}})
        assert greedy.verdict == HOLDS
        return dealt.verdict

    assert [verdict(0.8, 0.9), verdict(0.95, 0.9), verdict(1.2, 1.1)] == [HOLDS, OPEN, FAILS]


def test_part_of_repeats_at_toy_size(monkeypatch, tmp_path):
    monkeypatch.setattr(cases, "presets", lambda: ("fp32", "int4"))
    names = ("2 ranks, table_wise", "3 ranks, table_wise")
    monkeypatch.setattr(cases, "PLAYED", names)
    (part,) = (part for part in zionex.PAPER.parts if part.name == "repeats")
    part.run(tmp_path / "repeats.jsonl", Request())
    lines = [json.loads(line) for line in (tmp_path / "repeats.jsonl").read_text().splitlines()]
    assert tuple(line["case"] for line in lines) == names
    assert all(line["values"] == {"fp32": 1, "int4": 1, "another_seed": 1} for line in lines)
    (claim,) = part.claims(tmp_path / "repeats.jsonl")
    assert "4 of 4 pairs" in claim.result


def test_an_all_reduce_by_node_sends_a_ranks_share_between_nodes():
    (part,) = (part for part in zionex.PAPER.parts if part.name == "between_nodes")
    there = [r for r in records.read(part.committed) if isinstance(r, NetworkRecord)]
    (claim,) = part.decide(there)
    assert claim.verdict == HOLDS
    assert "2 hosts of 2 ranks, two_level 0.500" in claim.result
    flat = [r for r in there if r.configuration != "by_node"]
    flat += [replace(r, configuration="by_node") for r in flat if r.configuration == "fast"]
    (claim,) = part.decide(flat)
    assert claim.verdict == FAILS
    assert part.decide([r for r in there if r.ranks_per_host == 1]) == []
