"""Cast op in plain torch: the definition that the fast kernels must equal byte for byte."""

from functools import partial

import torch
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments, aligned
from trec_qcomm.ops.batch.rank_sum.reference import sum_of_parts

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_QUIET_NAN = {torch.float16: 0x7E00, torch.bfloat16: 0x7FC0}


def _bits_16(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return [..] int16, the bits of float32 values as a 16-bit dtype.

    There is one quiet NaN per sign: torch's own payload differs by code path.
    """
    sign = rows.view(torch.int32) < 0
    nan = torch.where(sign, _QUIET_NAN[dtype] - 0x8000, _QUIET_NAN[dtype]).to(torch.int16)
    return torch.where(rows.isnan(), nan, rows.to(dtype).view(torch.int16))


def encode(
    values: Tensor, segments: Segments, payload: Tensor, at: Tensor, *, dtype: str
) -> tuple[int, None]:
    """Write each row in `dtype`, rounded to nearest even.

    Returns: the first segment that overflows (a finite value becomes inf), or -1; and None.
    """
    overflow = -1
    for s in range(segments.num_segments):
        rows = segments.block(values, s).contiguous()
        is_copy = rows.dtype == DTYPES[dtype]
        rows = rows if is_copy else rows.float()
        cast = rows.to(DTYPES[dtype])
        if overflow < 0 and bool((cast.isinf() & rows.isfinite()).any()):
            overflow = s
        data = cast.view(torch.uint8).reshape(-1)
        if not is_copy:
            data = _bits_16(rows, DTYPES[dtype]).view(torch.uint8).reshape(-1)
        end = int(at[s]) + int(aligned(torch.tensor(data.numel())))
        payload[int(at[s]) : end] = 0
        payload[int(at[s]) : int(at[s]) + data.numel()] = data
    return overflow, None


def decode(encoded: Encoded, segments: Segments, out: Tensor, *, dtype: str) -> None:
    """Write each row back, in the dtype of `out`."""
    for s in range(segments.num_segments):
        rows = segments.block(out, s)
        nbytes = rows.numel() * DTYPES[dtype].itemsize
        data = encoded.payload[int(encoded.at[s]) : int(encoded.at[s]) + nbytes].clone()
        cast = data.view(DTYPES[dtype]).view(rows.shape)
        if rows.dtype == DTYPES[dtype]:
            rows.view(torch.uint8).copy_(cast.view(torch.uint8))
            continue
        words = cast.float().view(torch.int32)
        if dtype == "fp16":  # torch's NaN payload differs by code path; ours is that of the half
            half = cast.view(torch.int16).to(torch.int32)
            nan = (half & 0x3FF) << 13 | 0x7F800000 | (half & -0x8000) << 16
            words = torch.where(cast.isnan(), nan, words)
        if rows.dtype == torch.float32:
            rows.view(torch.int32).copy_(words)
        else:
            rows.view(torch.int16).copy_(_bits_16(words.view(torch.float32), rows.dtype))


def decode_sum(
    encoded: Encoded, segments: Segments, out: Tensor, *, dtype: str, held_at: int
) -> None:
    """Write the sums."""
    sum_of_parts(encoded, segments, out, partial(decode, dtype=dtype), held_at)
