"""Time that finding a threshold takes, beside the time that encoding by it takes.

Knows: gradients of a DLRM's size, the codec threshold. Does not know: papers.
Both are measured in turn in one process, and only their ratio counts, as the machine is shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch import Tensor

from examples.papers.measurements import Values
from trec_qcomm import Segments, Threshold
from trec_qcomm.control.threshold import ThresholdRefresh, quantile

LIVES = (1, 10, 50, 200, 1000)
NUMEL, DENSITY, REPEATS = 1_000_000, 0.01, 15
SETTING = f"{NUMEL:,} gradients, density {DENSITY}, median of {REPEATS} on one core"


def cases(numel: int = NUMEL) -> Mapping[str, Callable[[], Values]]:
    """Return the measurements by the values that a threshold is found from."""
    return {
        "all": lambda: times(numel, ThresholdRefresh(every=1, density=DENSITY, sample="all")),
        "4096": lambda: times(numel, ThresholdRefresh(every=1, density=DENSITY)),
    }


def times(numel: int, refresh: ThresholdRefresh) -> Values:
    """Return the seconds of finding a threshold and of encoding, and their ratio, a median."""
    gradients = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    threshold = quantile(gradients, refresh, step=0)
    assert threshold is not None
    find_s, encode_s = [], []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        quantile(gradients, refresh, step=0)
        middle = time.perf_counter()
        _encode(gradients, threshold)
        find_s.append(middle - begin)
        encode_s.append(time.perf_counter() - middle)
    ratio = median(a / b for a, b in zip(find_s, encode_s, strict=True))
    return {"find_s": median(find_s), "encode_s": median(encode_s), "ratio": ratio}


def _encode(gradients: Tensor, threshold: float) -> None:
    codec, segments = Threshold(threshold, values="int8"), Segments.packed([len(gradients)], 1)
    payload = torch.empty(int(codec.max_nbytes(segments).sum()), dtype=torch.uint8)
    codec.encode(gradients, segments, payload, torch.zeros(1, dtype=torch.int64))
