"""The model against cases worked by hand, and at its limits."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from trec_qcomm.ext.planner.cost_model import Throughput
from trec_qcomm.lab.simulate.plans import PLANS, Cluster, Hops, Link, Model
from trec_qcomm.lab.simulate.step import PARTS, WORK, Configuration, Device, break_even, simulate

FREE = Link(latency_s=0.0, gb_s=1e30)
MODEL = Model(num_ids=(1.0, 3.0), dim=4, batch_size=10, dense_values=1000)
FLOAT32 = Configuration(name="fp32")
INT4 = Configuration(name="int4", distinct_share=0.5, forward=8, backward=8, dense=8)
COMPUTE_S = 0.06
FAST = Throughput(encode_gb_s=math.inf, decode_gb_s=math.inf)


def cluster(num_gpus: int, *, node: int = 2, intra: Link = FREE, inter: Link = FREE) -> Cluster:
    return Cluster(num_gpus=num_gpus, gpus_per_node=node, intra=intra, inter=inter)


def device(throughput: Throughput = FAST, **options: Any) -> Device:
    given = {"compute_s": COMPUTE_S, "memory_gb_s": 1e-3, "overlap": 0.0} | options
    return Device(throughput=throughput, **given)


def link(latency_s: float, gb_s: float) -> Link:
    return Link(latency_s=latency_s, gb_s=gb_s)


# Links.


def test_an_all_reduce_by_each_algorithm() -> None:
    # 8 GB on 4 GPUs, 2 a node. Ring: 6 messages, 2 * 3/4 * 8 = 12 GB between nodes. Two-shot:
    # twice 2 GB for each peer, 2 of them beyond. Hierarchical: twice 4 GB in the node, and a ring
    # of 2 nodes for 4 GB.
    seconds = cluster(4, intra=link(0.0, 8.0), inter=link(1.0, 2.0)).all_reduce_s(8e9)
    assert seconds == pytest.approx(
        {"ring": 6 + 6.0, "two_shot": 2 * min(2 + 2.0, 4 / 8 + 1 + 2.0), "hierarchical": 1 + 2 + 2}
    )


# Plans: 2 tables of 4 columns, 10 samples a GPU: a table's rows of one batch are 160 bytes.


def test_table_wise_bytes() -> None:
    load = PLANS["tw"](MODEL, cluster(2), distinct=1.0, is_ours=True)
    assert load.rows == Hops(intra=160, inter=0)
    assert (load.encoded_nbytes, load.decoded_nbytes) == (2 * 160, 320)
    assert load.lookups == 2 * 10 * 3  # of the table of 3 ids
    assert load.ids == Hops(intra=10 * (3 * 8 + 4), inter=0)
    four = PLANS["tw"](MODEL, cluster(4), distinct=0.5, is_ours=True)
    assert four.rows == Hops(intra=80, inter=160)  # two GPUs have nothing to do
    assert (four.encoded_nbytes, four.decoded_nbytes) == (320, 160)


def test_row_wise_bytes() -> None:
    full = PLANS["rw"](MODEL, cluster(4), distinct=1.0, is_ours=False)
    assert (full.rows, full.summed_nbytes) == (Hops(), 320)
    assert (full.encoded_nbytes, full.decoded_nbytes) == (4 * 320, 320)  # sums come out
    assert full.lookups == 10 * 4
    assert full.ids == Hops(intra=10 * (1 * 8 + 2 * 4), inter=2 * 10 * (1 * 8 + 2 * 4))
    # A quarter of the GPUs have a sum of a bag of 1 id; 1 - (3/4)^3 of a bag of 3 ids.
    filled = PLANS["rw"](MODEL, cluster(4), distinct=1.0, is_ours=True)
    assert filled.rows.intra == pytest.approx(160 * (0.25 + 37 / 64))
    assert filled.rows.inter == 2 * filled.rows.intra
    assert filled.summed_nbytes == 0
    assert filled.encoded_nbytes == filled.decoded_nbytes == 4 * filled.rows.intra
    alone = PLANS["rw"](MODEL, cluster(1), distinct=1.0, is_ours=True)
    assert (alone.rows, alone.encoded_nbytes) == (Hops(), 320)


def test_table_row_wise_bytes() -> None:
    load = PLANS["twrw"](MODEL, cluster(4), distinct=1.0, is_ours=True)
    assert (
        load.reduced_nbytes == 4 * 160 / 2
    )  # one table, the whole batch, half of it for the other
    assert load.rows == Hops(inter=160)
    assert load.across
    assert (load.encoded_nbytes, load.decoded_nbytes) == (2 * 160, 320)
    assert load.lookups == 2 * 10 * 3
    assert load.ids == Hops(intra=10 * (1.5 * 8 + 4), inter=2 * 10 * (1.5 * 8 + 4))


# Steps.


def test_parts_of_a_step_by_hand() -> None:
    """4 GPUs, 2 a node, table-wise, links of 1 GB/s without latency."""
    unit = link(0.0, 1.0)
    speed = Throughput(encode_gb_s=2.0, decode_gb_s=4.0)
    configuration = Configuration(name="w", forward=2, backward=4, dense=10)
    step = simulate(
        configuration, "tw", MODEL, cluster(4, intra=unit, inter=unit), device(speed, overlap=0.01)
    )
    work_s = COMPUTE_S + 3 * (4 * 10 * 3) * 16 / 1e6
    dense_s = 1.5 * 400 / 1e9  # two-shot's: 3/4 of 400 bytes twice, of which 2/3 between nodes
    assert step.parts_s == pytest.approx(
        {
            "compute": COMPUTE_S,
            "lookup": 3 * (4 * 10 * 3) * 16 / 1e6,
            "encode": (640 + 320 + 4000 * 1.25) / 2e9,
            "decode": (320 + 640 + 4000 * 2) / 4e9,
            "ids": 2 * 10 * (3 * 8 + 4) / 1e9,
            "forward": 2 * 160 / 2 / 1e9,
            "backward": 2 * 160 / 4 / 1e9,
            "dense": max(0.0, dense_s - 0.01 * work_s),
        }
    )
    assert tuple(step.parts_s) == PARTS
    assert step.step_s == pytest.approx(sum(step.parts_s.values()))
    assert step.communication_share == pytest.approx(1 - work_s / step.step_s)


def test_plain_row_wise_and_two_level_by_hand() -> None:
    """4 GPUs, 2 a node, ratio 2 forward and 4 backward; 1 GB/s inside, 1 KB/s between nodes."""
    on = cluster(4, intra=link(0.0, 1.0), inter=link(0.0, 1e-6))
    plain = Configuration(name="p", forward=2, backward=4)
    rw = simulate(plain, "rw", MODEL, on, device()).parts_s
    assert rw["forward"] == pytest.approx(2 * 160 / 1e9 + 160 / 1e3)
    assert rw["backward"] == pytest.approx(2 * 80 / 1e9 + 80 / 1e3)
    alike = simulate(replace(plain, is_ours=True), "rw", MODEL, on, device()).parts_s
    filled = (0.25 + 37 / 64) / 2
    assert alike["forward"] == pytest.approx(2 * filled * 160 / 1e3, rel=1e-5)
    slow = cluster(4, intra=link(0.0, 1e-6), inter=link(0.0, 1.0))
    twrw = simulate(plain, "twrw", MODEL, slow, device()).parts_s
    assert twrw["forward"] == pytest.approx(320 / 2 / 1e3 + 160 / 2 / 1e9)
    ours = simulate(replace(plain, is_ours=True), "twrw", MODEL, slow, device()).parts_s
    assert ours["forward"] == pytest.approx(320 / 1e3 + 160 / 2 / 1e9)


def test_sizes_that_go_first_are_messages_more() -> None:
    """4 GPUs, 1 a node: 3 messages, and with a codec of no fixed size 6 forward."""
    on = cluster(4, node=1, inter=link(0.5, 1e30))
    configuration = replace(INT4, sizes_first=True)
    for each, forward_s in ((INT4, 1.5), (configuration, 3.0)):
        parts = simulate(each, "tw", MODEL, on, device()).parts_s
        assert parts["forward"] == pytest.approx(forward_s)
        assert parts["backward"] == pytest.approx(1.5)
        assert parts["ids"] == pytest.approx(4.5)


@pytest.mark.parametrize("plan", PLANS)
def test_one_gpu_sends_nothing(plan: str) -> None:
    slow = link(1.0, 1e-9)
    alone = simulate(FLOAT32, plan, MODEL, cluster(1, intra=slow, inter=slow), device())
    assert {part: s for part, s in alone.parts_s.items() if s} == {
        part: alone.parts_s[part] for part in WORK
    }


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("tested", [FLOAT32, INT4, replace(INT4, is_ours=True, sizes_first=True)])
def test_a_step_is_monotone(plan: str, tested: Configuration) -> None:
    """Faster links, faster codecs and higher ratios make no step longer; more GPUs no shorter."""

    def step_s(
        tested: Configuration, num: int = 64, gb_s: float = 10.0, codec_gb_s: float = 100.0
    ) -> float:
        links = {"intra": link(1e-6, 450.0), "inter": link(2e-6, gb_s)}
        speed = Throughput(encode_gb_s=codec_gb_s, decode_gb_s=codec_gb_s)
        return simulate(tested, plan, MODEL, cluster(num, node=8, **links), device(speed)).step_s

    def falls(values: list[float]) -> bool:
        return all(a >= b - 1e-15 for a, b in pairwise(values))

    assert falls([step_s(tested, gb_s=speed) for speed in (0.1, 1, 10, 100, 1e6)])
    assert step_s(tested, gb_s=0.1) > step_s(tested, gb_s=1e6)
    assert falls([step_s(tested, codec_gb_s=speed) for speed in (0.1, 1, 10, 1e6)])
    ratios = ("forward", "backward", "dense")
    assert falls([step_s(replace(INT4, **dict.fromkeys(ratios, r))) for r in (1.5, 2, 8, 32)])
    assert falls([step_s(replace(tested, distinct_share=share)) for share in (1.0, 0.5, 0.1)])
    assert falls([step_s(tested, num=num) for num in (4096, 512, 64, 8)])


def test_break_even_is_that_of_the_closed_form() -> None:
    """A codec of ratio r and throughput H = 1 / (1/encode + 1/decode) pays on links of up to
    H (1 - 1/r), where nothing but rows is sent, as many as are coded: half are another GPU's."""
    model = replace(MODEL, dense_values=0)
    speed = Throughput(encode_gb_s=3.0, decode_gb_s=6.0)
    coded = Configuration(name="c", forward=4, backward=4)

    def saved_s(gb_s: float) -> float:
        on = cluster(2, node=1, inter=link(0.0, gb_s))
        plain, other = (simulate(w, "tw", model, on, device(speed)) for w in (FLOAT32, coded))
        return plain.step_s - other.step_s

    pays, gb_s = break_even(saved_s)
    assert pays == "below"
    assert gb_s == pytest.approx(2.0 * (1 - 1 / 4) / 2)  # each GPU codes its own rows, too


def test_a_reduction_by_node_takes_the_time_of_ours() -> None:
    """Inside a node go sums in the codec of that hop, and afterwards the coded sums."""
    ours = replace(FLOAT32, dense=4.0, dense_intra=2.0, dense_algorithm="hierarchical")
    on = cluster(16, node=8, intra=link(0.0, 1.0), inter=link(0.0, 1e30))
    dense_s = simulate(ours, "tw", MODEL, on, device()).parts_s["dense"]
    assert dense_s == pytest.approx(7 / 8 * 4 * MODEL.dense_values * (1 / 2 + 1 / 4) / 1e9)
