"""Signs and a magnitude a row, in plain torch: the definition. Shapes: n rows, D columns."""

import math

import torch
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments, aligned
from trec_qcomm.ops.sparsify.reference import pack_bits, unpack_bits


def magnitudes(x: Tensor) -> Tensor:
    """[n, D] -> [n] float32: the mean of |x|; for a row with NaN or inf, which kind it has."""
    mean = (x.double().abs().cumsum(1)[:, -1] / x.shape[1]).float()
    special = torch.where(x.isfinite(), 0, x)
    lowest, highest = special.amin(1), special.amax(1)  # NaN where there is one
    kind = lowest + highest  # inf - inf is NaN, too
    return torch.where(x.isfinite().all(1), mean, kind)


def encode(values: Tensor, segments: Segments, payload: Tensor, at: Tensor) -> None:
    """Write the segments."""
    for s in range(segments.num_segments):
        x = segments.block(values, s).contiguous()
        finite = x.isfinite().all(1, keepdim=True)
        bits = torch.where(finite, x.view(torch.int32) < 0, ~x.isfinite())
        scale = torch.where(magnitudes(x).isnan(), math.nan, magnitudes(x))  # one quiet NaN
        data = torch.cat([scale.view(torch.uint8), pack_bits(bits).flatten()])
        end = int(aligned(torch.tensor(data.numel())))
        payload[int(at[s]) :][:end] = 0
        payload[int(at[s]) :][: data.numel()] = data


def decode(encoded: Encoded, segments: Segments, out: Tensor) -> int:
    """Write the rows; return the first segment with a magnitude below 0, or -1."""
    for s in range(segments.num_segments):
        n, dim = int(segments.num_rows[s]), segments.dim
        width = (dim + 7) // 8
        data = encoded.payload[int(encoded.at[s]) :][: n * (4 + width)].clone()
        scale = data[: 4 * n].view(torch.float32)[:, None]
        if bool((scale.isfinite() & (scale.view(torch.int32) < 0)).any()):
            return s
        bit = unpack_bits(data[4 * n :].view(n, width), dim) == 1
        signed = torch.where(bit, -scale, scale)
        special = torch.where(bit, scale, 0)
        segments.block(out, s).copy_(torch.where(scale.isfinite(), signed, special))
    return -1
