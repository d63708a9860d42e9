"""Figures of rows and codecs, against a computation from their definitions in numpy's float64."""

import math

import numpy as np
import pytest
import torch

from tests.lab.debug.definitions import offline_figures
from trec_qcomm import (
    Cast,
    ErrorBounded,
    Fbgemm,
    Float6,
    ForwardMask,
    Identity,
    Rowwise,
    Threshold,
    TopK,
)
from trec_qcomm.comm.frames.plan import plan_frames
from trec_qcomm.config import read_config
from trec_qcomm.ext.dct.masks import new_masks, with_masks
from trec_qcomm.lab.debug import tally
from trec_qcomm.lab.debug.coding import pack
from trec_qcomm.lab.debug.recorder import Key, Measurement, Recorder
from trec_qcomm.testing import awkward_rows

CODECS = [
    Identity(),
    Cast("fp16"),
    Cast("bf16"),
    *(Rowwise(bits) for bits in (8, 4, 2)),
    ErrorBounded(0.01),
    ErrorBounded(0.3, mode="abs", encoder="rans"),
    ErrorBounded(0.05, encoder="vector_lz"),
    Float6(),
    Float6("e3m2"),
    TopK(density=0.25),
    TopK(threshold=0.5, values="int8"),
    Threshold(0.5),
    *(Fbgemm(p) for p in ("int8", "int4", "int2", "fp8", "fp8_e5m2", "mx4", "fp16", "bf16")),
]
DIM, TABLES, RANKS = 8, ("a", "b", "c"), 2
NUM_ROWS = (5, 0, 14, 40, 3, 14)  # of a, b, c for rank 0, then for rank 1


def rows_of(codec, kind):
    """Return blocks by segment: plain values at several scales, or awkward ones."""
    generator = torch.Generator().manual_seed(3)
    blocks = [torch.randn(n, DIM, generator=generator) * 10.0**-s for s, n in enumerate(NUM_ROWS)]
    if kind == "awkward":
        special = awkward_rows(DIM)
        if not isinstance(codec, Fbgemm) or codec.precision not in ("fp16", "bf16"):
            blocks[3][: len(special)] = special
    blocks[5][2] = 0.0
    return blocks


def placed(codec, blocks):
    """Place the blocks in a matrix in which tables lie side by side."""
    frames = [[(table, DIM) for table in TABLES]] * RANKS
    plan = plan_frames(
        frames, layouts=[0] * RANKS, codecs=dict.fromkeys(TABLES, codec),
        table_numbers={t: n for n, t in enumerate(TABLES)}, rank=0,
    )  # fmt: skip
    height, width = max(NUM_ROWS), 3 * DIM + 1
    values = torch.full((RANKS, height, width), 7.0)
    start = []
    for s, block in enumerate(blocks):
        rank, column = s // 3, s % 3 * DIM
        values[rank, : len(block), column : column + DIM] = block
        start.append(rank * height * width + column)
    num_rows = torch.tensor(NUM_ROWS)
    return values, plan.place(num_rows, torch.tensor(start), torch.full((6,), width))


def measured(codec, blocks, **options):
    values, frames = placed(codec, blocks)
    before = values.clone()
    measurement = Measurement(options.pop("shadows", ()))
    names = options.pop("names", frames.plan.tables)
    for rows in pack(values, frames, seed=options.pop("seed", 0), tolerances=None, names=names):
        measurement.add(rows)
    assert torch.equal(values.view(torch.int32), before.view(torch.int32))
    return measurement


@pytest.mark.parametrize("kind", ["plain", "awkward"])
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_figures_are_those_of_the_definitions(codec, kind, monkeypatch):
    monkeypatch.setattr(tally, "_CHUNK", 7 * DIM)  # so that sums of several chunks are taken
    blocks = rows_of(codec, kind)
    by_table = dict(measured(codec, blocks).figures())
    for t, table in enumerate(TABLES):
        figures = by_table[Key(table, repr(codec), False)]
        expected = offline_figures(codec, blocks[t::3])
        for name, value in expected.items():
            if value is None or figures[name] is None:
                assert value is figures[name], (table, name)
            else:  # a sum of numbers of both signs is rounded as the sum of their magnitudes is
                atol = 1e-13 if name == "bias" else 0.0
                np.testing.assert_allclose(figures[name], value, 1e-9, atol, err_msg=name)
        assert set(figures) == set(expected)


def test_noise_is_that_of_the_exchange_whatever_is_left_out():
    """Values are rounded by their numbers, also where other tables are not measured."""
    codec, blocks = Rowwise(2, "stochastic"), rows_of(Rowwise(2), "plain")
    values, frames = placed(codec, blocks)
    (group,) = frames.groups
    sizes = codec.max_nbytes(group.segments)
    payload = torch.empty(int(sizes.sum()), dtype=torch.uint8)
    at = torch.cumsum(sizes, 0) - sizes
    out = torch.zeros_like(values)
    codec.decode(codec.encode(values, group.segments, payload, at, seed=0), group.segments, out)
    x, y = (
        torch.cat([group.segments.block(rows, s) for s in (2, 5)]).double()
        for rows in (values, out)
    )
    expected = 10 * math.log10(x.square().sum() / (y - x).square().sum())
    for names in (TABLES * 2, (None, None, "c") * 2):
        figures = dict(measured(codec, blocks, names=names).figures())
        assert figures[Key("c", repr(codec), False)]["snr_db"] == pytest.approx(expected, rel=1e-12)


def test_shadows_are_tried_on_the_same_rows():
    blocks = rows_of(Rowwise(4), "plain")
    refusing = Rowwise(4, nonfinite="raise")
    blocks[0][0, 0] = math.nan
    figures = dict(measured(Rowwise(8), blocks, shadows=[ErrorBounded(0.03), refusing]).figures())
    assert figures[Key("a", repr(refusing), True)] == {}  # they cannot be coded so
    for t, table in enumerate(TABLES):
        tried = figures[Key(table, repr(ErrorBounded(0.03)), True)]
        expected = offline_figures(ErrorBounded(0.03), blocks[t::3])
        np.testing.assert_allclose(tried["snr_db"], expected["snr_db"], 1e-9)
        assert tried["bits"] == expected["bits"]
        assert tried["tolerance"] == 0.03


def test_a_bound_of_a_sum_is_divided_among_its_summands():
    codec = ErrorBounded(0.2, mode="abs")
    plan = plan_frames(
        [[("a", DIM)]] * 2, layouts=[0, 0], codecs={"a": codec}, table_numbers={"a": 0}, rank=0,
        num_summands=2,
    )  # fmt: skip
    counts = torch.tensor([6, 6])
    frames = plan.place(counts, torch.tensor([0, 6 * DIM]), torch.full((2,), DIM))
    values = torch.randn(12, DIM, generator=torch.Generator().manual_seed(0))
    measurement = Measurement([ErrorBounded(0.4, mode="abs")])
    for rows in pack(values, frames, seed=0, tolerances=None, names=("a", "a")):
        measurement.add(rows)
    config, shadow = (figures for _, figures in measurement.figures())
    assert (config["tolerance"], shadow["tolerance"]) == (0.2, 0.4)
    for figures, half in ((config, 0.1), (shadow, 0.2)):
        expected = offline_figures(ErrorBounded(half, mode="abs"), values.split(6))
        assert figures["snr_db"] == pytest.approx(expected["snr_db"], rel=1e-9)


def test_masks_of_the_exchange_are_read_and_never_written():
    blocks = rows_of(ForwardMask(), "plain")
    for codec in (TopK(density=0.25), ForwardMask("fp32")):
        values, frames = placed(codec, blocks)
        masks = new_masks(frames, values.device)
        kept = masks.bits.fill_(0b1010_0001).clone()
        measurement = Measurement([Rowwise(8)])
        placed_with = with_masks(frames, masks)
        for rows in pack(values, placed_with, seed=0, tolerances=None, names=frames.plan.tables):
            measurement.add(rows)
        assert torch.equal(masks.bits, kept)
        figures = dict(measurement.figures())
    coded = figures[Key("b", repr(ForwardMask("fp32")), False)]
    columns = blocks[4][:, [0, 5, 7]].double()
    noise = blocks[4].double().square().sum() - columns.square().sum()
    assert coded["snr_db"] == pytest.approx(
        10 * math.log10(blocks[4].double().square().sum() / noise), rel=1e-12
    )
    assert figures[Key("b", repr(Rowwise(8)), True)]["snr_db"] > 30


def test_drift_is_against_the_mean_of_the_steps_before():
    recorder = Recorder(read_config("fp32"), None)
    drifts = [recorder._drift("t", rms) for rms in (1.0, 4.0, 0.0, 2.0, *[2.0] * 20)]
    # 0 has no logarithm, and does not count.
    assert drifts == [None, 2.0, None, 0.0, *[0.0] * 20]
    assert recorder._drift("t", 2000.0) == pytest.approx(math.log2(1000))
    assert recorder._drift("t", 2000.0) == pytest.approx(0.9 * math.log2(1000))
