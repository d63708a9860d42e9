"""Figures of rows and codecs, against a computation from their definitions in numpy's float64."""

import math

import numpy as np
import pytest
import torch

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
from trec_qcomm.core.segments import Masks, Segments
from trec_qcomm.lab.debug import tally
from trec_qcomm.lab.debug.coding import pack
from trec_qcomm.lab.debug.drift import RunningMeans
from trec_qcomm.lab.debug.measurement import Key, Measurement, received_squares
from trec_qcomm.lab.records.debug import HISTOGRAM_BINS, QUANTILES
from trec_qcomm.testing import awkward_rows, encode, round_trip

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
        measurement.add(rows, RANKS)
    assert torch.equal(values.view(torch.int32), before.view(torch.int32))
    return measurement


def alone(codec, block):
    """Return what a block decodes to when it is a segment of its own, and its bytes."""
    segments = Segments.packed([len(block)], DIM)
    y, encoded = round_trip(codec, block, segments), encode(codec, block, segments)
    return y, encoded.payload[: int(encoded.nbytes[0])].numpy()


def offline(codec, blocks):
    """Return the figures of one table from their definitions, value by value."""
    pairs = [(block, *alone(codec, block)) for block in blocks if len(block)]
    x = np.concatenate([x.double().numpy() for x, _, _ in pairs])
    y = np.concatenate([y.double().numpy() for _, y, _ in pairs])
    finite = np.isfinite(x) & np.isfinite(y)
    same = finite | (x == y) | (np.isnan(x) & np.isnan(y))
    fx, fy = np.where(finite, x, 0.0), np.where(finite, y, 0.0)
    e = fy - fx
    ranges = np.array([np.ptp(r[np.isfinite(r)]) if np.isfinite(r).any() else 0.0 for r in x])
    norms = np.sqrt((fx**2).sum(1))
    histogram = np.zeros(HISTOGRAM_BINS, int)
    for row, (width, mask) in zip(e, zip(ranges, finite, strict=True), strict=True):
        for error in np.abs(row[mask]) if width > 0 else ():
            at = -math.inf if error / width == 0 else math.floor(math.log2(error / width))
            histogram[min(max(at + 25, 0), 25)] += 1
    n, signal, noise = finite.sum(), (fx**2).sum(), (e**2).sum()
    both = math.sqrt(signal) * math.sqrt((fy**2).sum())
    nonzero = finite & (x != 0)
    peaks = np.abs(fx).max(1)[norms > 0] / (norms[norms > 0] / math.sqrt(DIM))
    limit = 9 / 8 * np.abs(fy).max()
    return {
        "num_rows": len(x), "num_values": x.size, "num_nan": np.isnan(x).sum(),
        "num_inf": np.isinf(x).sum(), "num_broken": (~same).sum(),
        "rms": math.sqrt(signal / n), "mean": fx.sum() / n,
        "snr_db": 10 * math.log10(signal / noise) if noise else None,
        "bias": e.sum() / np.abs(fx).sum(), "cosine": (fx * fy).sum() / both if both else None,
        "max_error": np.abs(e).max(), "error_histogram": histogram,
        "num_zero_range": (ranges == 0).sum(),
        "lost_share": ((np.abs(e) >= np.abs(fx)) & nonzero).sum() / nonzero.sum(),
        "num_clipped_rows": (np.abs(fx).max(1) > limit).sum() if limit else 0,
        "peak": np.median(peaks), "zero_share": (finite & (x == 0)).sum() / x.size,
        "zero_row_share": (finite & (x == 0)).all(1).mean(),
        "range_quantiles": np.quantile(ranges, QUANTILES),
        "norm_quantiles": np.quantile(norms, QUANTILES),
        "bits": 8 * sum(len(data) for _, _, data in pairs) / x.size,
        "entropy": entropy(codec, pairs, x.size),
        "error_over_bound": over_bound(codec, pairs),
        "tolerance": codec.tolerance,
        "verbatim_share": verbatim(codec, pairs, x.size),
    }  # fmt: skip


def entropy(codec, pairs, num_values):
    """Entropy of the codes of each segment, read bit by bit as wire/FORMAT.md says."""
    if isinstance(codec, Identity) or codec == Fbgemm("mx4"):
        return None
    bits = 0.0
    for _, y, data in pairs:
        _, counts = np.unique(codes(codec, y, data), return_counts=True)
        share = counts / counts.sum()
        bits += y.numel() * -(share * np.log2(share)).sum()
    return abs(bits) / num_values


def codes(codec, y, data):
    n, first, behind, width = len(y), 0, 0, None
    if isinstance(codec, Rowwise):
        first, width = 8 + 4 * n, codec.bits
    elif isinstance(codec, Float6):
        first, width = n, 6
    elif isinstance(codec, Fbgemm) and codec.precision not in ("fp16", "bf16"):
        width = {"int4": 4, "int2": 2}.get(codec.precision, 8)
        behind = 8 if width == 8 else 4
    if width is None:
        return y.numpy().view(np.int32).ravel()
    row = -(-width * DIM // 8)
    rows = data[first : first + n * (row + behind)].reshape(n, row + behind)[:, :row]
    flat = np.unpackbits(rows, axis=1, bitorder="little")[:, : DIM * width]
    return (flat.reshape(-1, width) << np.arange(width)).sum(1)


def over_bound(codec, pairs):
    if not isinstance(codec, ErrorBounded):
        return None
    worst = 0.0
    for x, y, _ in pairs:
        clean = x[x.isfinite()].double()
        bound = codec.bound * (float(clean.max() - clean.min()) if codec.mode == "rel" else 1.0)
        error = (y - x.double())[x.isfinite() & y.isfinite()].abs().max()
        worst = max(worst, float(error) / bound if error else 0.0)
    return worst


def verbatim(codec, pairs, num_values):
    if not isinstance(codec, ErrorBounded):
        return None
    count = 0
    for x, _, data in pairs:
        word = int.from_bytes(data[4:8].tobytes(), "little")
        count += x.numel() if word % 16 == 0 else word >> 7
    return count / num_values


@pytest.mark.parametrize(
    ("kind", "where"), [("plain", "cpu"), ("awkward", "cpu"), ("awkward", "anywhere")]
)
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_figures_are_those_of_the_definitions(codec, kind, where, monkeypatch):
    if where == "anywhere":  # what other devices run
        monkeypatch.setattr(tally.Tally, "_add", tally.Tally._add_anywhere)
    monkeypatch.setattr(tally, "_CHUNK", 7 * DIM)  # so that sums of several chunks are taken
    blocks = rows_of(codec, kind)
    by_table = dict(measured(codec, blocks).figures())
    for t, table in enumerate(TABLES):
        figures = by_table[Key(table, repr(codec), False)]
        expected = offline(codec, blocks[t::3])
        x = torch.cat(blocks[t::3]).double()
        # A sum of numbers of both signs is rounded as the sum of their magnitudes is.
        lost = 1e-13 * float(torch.where(x.isfinite(), x, 0).abs().mean())
        cancelled = {"mean": lost, "bias": 1e-13, "cosine": 1e-13}
        for name, value in expected.items():
            if value is None or figures[name] is None:
                assert value is figures[name], (table, name)
            else:
                atol = cancelled.get(name, 0.0)
                np.testing.assert_allclose(figures[name], value, 1e-9, atol, err_msg=name)
        assert set(figures) == {*expected, "num_flushed"}


def test_squares_of_what_is_sent_are_those_of_what_is_received():
    codec, blocks = Rowwise(4), rows_of(Rowwise(4), "awkward")
    sent = measured(codec, blocks).sent_squares
    values, frames = placed(codec, blocks)
    for s, block in enumerate(blocks):
        for group in frames.groups:
            group.segments.block(values, s).copy_(alone(codec, block)[0])
    received = received_squares(values, frames, frames.plan.tables)
    assert sent.keys() == received.keys() == set(TABLES)
    for t, table in enumerate(TABLES):
        decoded = [alone(codec, b)[0].double() for b in blocks[t::3]]
        expected = [float(y[y.isfinite()].square().sum()) for y in decoded]
        np.testing.assert_allclose(sent[table], expected, 1e-12)
        np.testing.assert_allclose(received[table], expected, 1e-12)
    only = received_squares(values, frames, [None, "b", None] * 2)
    assert only == {"b": received["b"]}
    rows = torch.cat(blocks)
    elsewhere = tally._squares_of(rows, torch.tensor(NUM_ROWS)).tolist()
    here = tally.segment_squares(rows, Segments.packed(NUM_ROWS, DIM)).tolist()
    np.testing.assert_allclose(elsewhere, here, 1e-12)


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
    expected = [float(group.segments.block(out, s).double().square().sum()) for s in (2, 5)]
    for names in (TABLES * 2, (None, None, "c") * 2):
        squares = measured(codec, blocks, names=names).sent_squares
        np.testing.assert_allclose(squares["c"], expected, 1e-12)


def test_shadows_are_tried_on_the_same_rows():
    blocks = rows_of(Rowwise(4), "plain")
    refusing = Rowwise(4, nonfinite="raise")
    blocks[0][0, 0] = math.nan
    figures = dict(measured(Rowwise(8), blocks, shadows=[ErrorBounded(0.03), refusing]).figures())
    assert figures[Key("a", repr(refusing), True)] == {}  # they cannot be coded so
    for t, table in enumerate(TABLES):
        tried = figures[Key(table, repr(ErrorBounded(0.03)), True)]
        expected = offline(ErrorBounded(0.03), blocks[t::3])
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
        measurement.add(rows, 2)
    config, shadow = (figures for _, figures in measurement.figures())
    assert (config["tolerance"], shadow["tolerance"]) == (0.2, 0.4)
    assert 0.9 * 0.1 < config["max_error"] <= 0.1
    assert 0.9 * 0.2 < shadow["max_error"] <= 0.2
    assert 0.9 < config["error_over_bound"] <= 1


def test_masks_of_the_exchange_are_read_and_never_written():
    blocks = rows_of(ForwardMask(), "plain")
    for codec in (TopK(density=0.25), ForwardMask("fp32")):
        values, frames = placed(codec, blocks)
        masks = frames.new_masks(values.device)
        kept = masks.bits.fill_(0b1010_0001).clone()
        with_counts = Masks(masks.bits, masks.at, 3 * frames.num_rows)
        measurement = Measurement([Rowwise(8)])
        placed_with = frames.with_masks(with_counts)
        for rows in pack(values, placed_with, seed=0, tolerances=None, names=frames.plan.tables):
            measurement.add(rows, RANKS)
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
    means = RunningMeans()
    quantiles = [0.0, 0.0, 0.0]

    def drift(rms, norm=1.0):
        figures = {
            "rms": rms, "range_quantiles": [*quantiles, 2.0], "norm_quantiles": [*quantiles, norm],
        }  # fmt: skip
        return means.drifts("t", figures)

    assert drift(1.0) == {"rms_drift": None, "range_drift": None, "norm_drift": None}
    assert drift(4.0) == {"rms_drift": 2.0, "range_drift": 0.0, "norm_drift": 0.0}
    assert drift(0.0, norm=0.0)["rms_drift"] is None  # has no logarithm, and does not count
    assert drift(2.0) == {"rms_drift": 0.0, "range_drift": 0.0, "norm_drift": 0.0}
    for _ in range(20):
        drift(2.0)
    assert drift(2000.0)["rms_drift"] == pytest.approx(math.log2(1000))
    assert drift(2000.0)["rms_drift"] == pytest.approx(0.9 * math.log2(1000))
