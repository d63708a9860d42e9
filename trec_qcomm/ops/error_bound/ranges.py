"""Ranges of segments, from which relative error bounds follow, before anything is encoded.

Knows: rows in memory of the CPU. Does not know: bounds, bytes.
"""

import torch
from torch import Tensor

from trec_qcomm.core.segments import Segments
from trec_qcomm.ops.dispatch import arrays
from trec_qcomm.ops.error_bound.quantizer import cpu as quantizer


def segment_ranges(values: Tensor, segments: Segments) -> Tensor:
    """Return [S] float64, max - min of the finite values of each segment; 0 where none is.

    Args: values: float32 on the CPU, contiguous, the buffer that holds the rows.
    """
    ranges = torch.empty(segments.num_segments, dtype=torch.float64)
    quantizer.fill_ranges(*arrays(values), *segments.arrays, segments.dim, ranges.numpy())
    return ranges
