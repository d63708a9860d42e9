"""Figures of a debug record from their definitions, value by value, in numpy's float64."""

import math

import numpy as np

from trec_qcomm.core.segments import Segments
from trec_qcomm.testing import encode, round_trip


def offline_figures(codec, blocks):
    """Return the figures of one table from their definitions, value by value."""
    pairs = [(block, *_alone(codec, block)) for block in blocks if len(block)]
    x = np.concatenate([x.double().numpy() for x, _, _ in pairs])
    y = np.concatenate([y.double().numpy() for _, y, _ in pairs])
    finite = np.isfinite(x) & np.isfinite(y)
    same = finite | (x == y) | (np.isnan(x) & np.isnan(y))
    fx, fy = np.where(finite, x, 0.0), np.where(finite, y, 0.0)
    e = fy - fx
    norms = np.sqrt((fx**2).sum(1))
    n, signal, noise = finite.sum(), (fx**2).sum(), (e**2).sum()
    nonzero = finite & (x != 0)
    peaks = np.abs(fx).max(1)[norms > 0] / (norms[norms > 0] / math.sqrt(x.shape[1]))
    return {
        "num_rows": len(x), "num_values": x.size, "num_nan": np.isnan(x).sum(),
        "num_inf": np.isinf(x).sum(), "num_broken": (~same).sum(),
        "rms": math.sqrt(signal / n),
        "snr_db": 10 * math.log10(signal / noise) if noise else None,
        "bias": e.sum() / np.abs(fx).sum(),
        "lost_share": ((np.abs(e) >= np.abs(fx)) & nonzero).sum() / nonzero.sum(),
        "peak": np.median(peaks),
        "bits": 8 * sum(len(data) for _, _, data in pairs) / x.size,
        "tolerance": codec.tolerance,
    }  # fmt: skip


def _alone(codec, block):
    """Return what a block decodes to when it is a segment of its own, and its bytes."""
    segments = Segments.packed([len(block)], block.shape[1])
    y, encoded = round_trip(codec, block, segments), encode(codec, block, segments)
    return y, encoded.payload[: int(encoded.nbytes[0])].numpy()
