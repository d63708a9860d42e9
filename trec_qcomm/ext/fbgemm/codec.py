"""Codec fbgemm: rows coded by FBGEMM's own operators, in FBGEMM's layout.

Take it if you come from TorchRec's QCommsConfig and want the same values, or if FBGEMM's kernels
are faster on your device.
Source: FBGEMM's quantize_comm.py, quantize_ops; Yang et al. 2020 (int8, bf16), Rouhani et al. 2023
(mx4).
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from trec_qcomm.core.codec import Codec, Contract
from trec_qcomm.core.errors import UnencodableError
from trec_qcomm.core.registry import register_codec
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ext.buffers import item_places, put_rows, take_rows
from trec_qcomm.ext.fbgemm.layouts import LAYOUTS, check_dim
from trec_qcomm.ext.fbgemm.operators import dequantize, is_installed, quantize
from trec_qcomm.ops.dispatch import check_buffers, check_sizes

Precision = Literal["int8", "int4", "int2", "fp8", "fp8_e5m2", "mx4", "fp16", "bf16"]
NonFinite = Literal["lost", "raise"]
_WIRE_IDS = {name: 14 + n for n, name in enumerate(get_args(Precision))}


@dataclass(frozen=True)
class Fbgemm(Codec):
    """Codec that sends rows as FBGEMM codes them, with FBGEMM's rounding, to nearest.

    Take it to keep the values of TorchRec's QCommsConfig, for FP8 or MX4, or if a measurement on
    your device says that it is faster. Else take `cast`, `rowwise` or `float6`. They keep NaN and
    inf, take any dim, are smaller at equal bits (`rowwise` 8: D + 4 bytes a row), and lose no small
    gradients. They can round stochastically. They code rows where they lie, without the two copies
    that FBGEMM's contiguous rows take.

    A ValueError says that FBGEMM is not installed. When the model is sharded, a ValueError says
    that a precision does not take a dim D (for column-wise tables, the dim of a shard) or a `block`
    of `dense`.

        precision  bytes of a row  D              rounds to
        int8       D + 8           multiple of 4  1/255 of max - min
        int4       D / 2 + 4       multiple of 4  1/15 of it, with scale and lowest as fp16
        int2       D / 4 + 4       multiple of 8  1/3 of it, with scale and lowest as fp16
        fp8        D + 8           multiple of 4  3 bits of mantissa (e4m3): FBGEMM's forward format
        fp8_e5m2   D + 8           multiple of 4  2 bits of mantissa: FBGEMM's backward format
        mx4        D / 2 + D / g   multiple of 8  1 bit (e2m1) under a power of 2 for g values, the
                                                  largest of 32, 16 and 8 that divides D
        fp16       2 D             any            10 bits of mantissa
        bf16       2 D             any            7 bits of mantissa

    NaN, inf and values out of range, on a CPU:

        int8           NaN becomes the row's lowest value, a row with inf NaN, and a row narrower
                       than 1e-20 its lowest value
        int4, int2     the same, but steps below 6e-8 are lost, and a lowest value or a step above
                       65504 makes the row NaN
        fp8, fp8_e5m2  NaN becomes plus or minus the row's largest magnitude, a row with inf becomes
                       inf and NaN, and rows below 1e-20 are coarser or 0
        mx4            NaN, inf and magnitudes above 2.9e38 make their group 0
        fp16, bf16     NaN arrives; inf, and what is beyond the format, become its largest value,
                       65504 or 3.39e38 (`cast` gives inf)

    GPU kernels treat these in other ways (mx4: as the largest value of the group), and may round
    int8, int4 and int2 differently in the last bit. We have run none of them. On a CPU mx4 is
    FBGEMM's own Python code and slow. FBGEMM codes FP8 rows on GPUs only, so on a CPU fp8 assembles
    rows from FBGEMM's operator for single values.

    Args:
        precision: format of a row, above.
        nonfinite: what happens to NaN and inf. `lost`: they become the values above. `raise`: they
            raise an UnencodableError; on a GPU every encode waits for this check.
    Raises: ValueError: FBGEMM is not installed.
    """

    precision: Precision
    nonfinite: NonFinite = "lost"

    name = "fbgemm"
    keeps_nonfinite = False
    contract = Contract.BIASED
    has_gpu_kernels = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_installed():
            raise ValueError(
                "codec fbgemm: FBGEMM is not installed: pip install fbgemm-gpu, without CUDA "
                "fbgemm-gpu-cpu, of the version that belongs to this torch"
            )

    @property
    def may_refuse(self) -> bool:
        """Whether `encode` may raise an UnencodableError: with nonfinite `raise`."""
        return self.nonfinite == "raise"

    @property
    def wire_id(self) -> int:
        """Id of the decoder in a frame: 14 to 21, in the order of Precision."""
        return _WIRE_IDS[self.precision]

    def check_dim(self, dim: int) -> None:
        """Raise ValueError unless FBGEMM codes rows of `dim` values with this precision."""
        check_dim(self.precision, dim)

    def max_nbytes(self, segments: Segments) -> Tensor:
        """Return [S] int64, the exact sizes in bytes. Raise ValueError for another dim."""
        check_dim(self.precision, segments.dim)
        return segments.nbytes_of_rows(LAYOUTS[self.precision].row_nbytes(segments.dim))

    @torch.no_grad()
    def encode(
        self,
        values: Tensor,
        segments: Segments,
        payload: Tensor,
        at: Tensor,
        *,
        seed: int = 0,
        tolerances: Tensor | None = None,
    ) -> Encoded:
        """Gather the rows, unless they lie one after the other, and code them in one call."""
        nbytes = self.max_nbytes(segments)
        check_buffers(values, segments, payload, at, nbytes)
        rows = take_rows(values, segments)
        if self.may_refuse and not bool((finite := rows.isfinite().all(1)).all()):
            row = int(finite.int().argmin())
            first = int(torch.searchsorted(segments.offsets, row, right=True)) - 1
            raise UnencodableError("NaN or inf (nonfinite: raise)", segment=first)
        if len(rows):
            coded, sizes = quantize(rows, self.precision), self._sizes(segments)
            parts = _parts(payload, at, sizes)
            torch.split_with_sizes_copy(coded, sizes.tolist(), out=parts)
            payload[item_places(at + sizes, nbytes - sizes, payload.device)] = 0
        return Encoded(payload, at, nbytes)

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Write the rows back."""
        check_sizes(encoded, self.max_nbytes(segments))
        check_buffers(out, segments, encoded.payload, encoded.at, encoded.nbytes)
        if segments.offsets[-1]:
            coded = torch.cat(_parts(encoded.payload, encoded.at, self._sizes(segments)))
            put_rows(dequantize(coded, self.precision, segments.dim), segments, out)

    def _sizes(self, segments: Segments) -> Tensor:
        """Return [S] int64, the bytes of each segment without what pads it."""
        return segments.num_rows * LAYOUTS[self.precision].row_nbytes(segments.dim)


def _parts(payload: Tensor, at: Tensor, sizes: Tensor) -> list[Tensor]:
    """Return a view of the coded rows of each segment."""
    places = zip(at.tolist(), sizes.tolist(), strict=True)
    return [payload[begin : begin + size] for begin, size in places]


# Without FBGEMM the name is known, to say what is missing, and no frame can be read.
register_codec(Fbgemm, *(Fbgemm(p) for p in get_args(Precision) if is_installed()))
