"""Codec error_bounded: every decoded value is within a bound that you state.

With bitpack, normally distributed rows become 6x smaller at 1 % of the range, and 8x at 3 %.
Source: Feng et al., SC'24 (error-bounded compression of the embedding all-to-all, one bound a
table), and SZ3 (a quantizer that checks each value).
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from trec_qcomm.codecs.base import KernelCodec, Options
from trec_qcomm.core.checks import MakeError
from trec_qcomm.core.codec import Contract
from trec_qcomm.core.fields import Range, check_fields
from trec_qcomm.core.registry import register_codec
from trec_qcomm.core.segments import VALUE_DTYPES, Encoded, Segments
from trec_qcomm.ops.dispatch import check_bounds
from trec_qcomm.ops.error_bound import error_of, fill_max_nbytes
from trec_qcomm.ops.rowwise.reference import write_rounded

Mode = Literal["rel", "abs"]
Encoder = Literal["bitpack", "vector_lz", "rans"]


@dataclass(frozen=True)
class ErrorBounded(KernelCodec):
    """Codec that keeps |x - decoded| <= error bound for every finite value, without slack.

    NaN and inf survive. If a segment would not become smaller, its rows are sent as float32, with 8
    bytes more. A segment arrives exactly if its finite values are all equal. It also arrives
    exactly if its bound is too small or too large for float32: a step of 2 error bounds and its
    inverse must be normal numbers.

    Rows of float16 and bfloat16 are coded by way of a float32 copy. What is decoded is rounded to
    their dtype, which comes on top of the bound.

    Args:
        bound: with mode `rel`, the error bound as a fraction of max - min over the segment's finite
            values; 0 < bound < 1, and 0.01 is 1 %. A segment is the rows that one rank sends one
            peer for one table in one step, so each table and each step has its own scale. With mode
            `abs`, the error bound itself, in the unit of the values.
        mode: what `bound` means.
        encoder: how the integers round(x / (2 error bound)) become bytes. `bitpack`: at the speed
            of memory. `rans`: entropy coded, a tenth to a fifth smaller and several times slower.
            `vector_lz`: bitpack that sends repeated rows once; far slower, and not on a GPU.
            `python -m trec_qcomm preview` measures which is fastest for a table's rows.
    """

    bound: Annotated[float, Range(0, is_open=True)]
    mode: Mode = "rel"
    encoder: Encoder = "bitpack"

    name = "error_bounded"
    op = "trec_qcomm.ops.error_bound"
    fixed_size = False
    wire_id = 7
    contract = Contract.BOUNDED

    def __post_init__(self) -> None:
        check_fields(self, self.name)
        if self.mode == "rel" and self.bound >= 1:
            raise ValueError(f"error_bounded.bound: {self.bound!r} is not below 1 (mode rel)")

    @property
    def tolerance(self) -> float:
        """Error bound: a fraction with mode `rel`, in the unit of the values with `abs`."""
        return float(self.bound)

    @property
    def damage(self) -> MakeError:
        """Function that makes the error from the number that the kernels return."""
        return error_of

    @property
    def has_gpu_kernels(self) -> bool:
        """Whether it runs on a GPU: all encoders do but vector_lz, an extension in numpy."""
        return self.encoder != "vector_lz"

    def for_values(self, dtype: torch.dtype) -> "ErrorBounded":
        """Return the codec itself: it takes rows of float16 and bfloat16."""
        return self

    def encode(
        self, values: Tensor, segments: Segments, payload: Tensor, at: Tensor, **options: Any
    ) -> Encoded:
        """Write the encoded rows to `payload`."""
        wide = values.float() if values.dtype in VALUE_DTYPES else values
        return super().encode(wide, segments, payload, at, **options)

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Write the decoded rows to `out`, in the dtype of `out`."""
        wide = out.float() if out.dtype in VALUE_DTYPES else out  # itself if it is float32
        super().decode(encoded, segments, wide)
        if wide is not out:
            write_rounded(wide, out)

    def max_nbytes(self, segments: Segments) -> Tensor:
        """Return [S] int64, the bytes of each segment's rows as float32, with the header."""
        sizes = torch.empty(segments.num_segments, dtype=torch.int64)
        fill_max_nbytes(segments.num_rows.numpy(), segments.dim, sizes.numpy())
        return sizes

    def encoder_options(self, nbytes: Tensor, seed: int, tolerances: Tensor | None) -> Options:
        """Return the options of the kernel that encodes.

        Args: tolerances: [S] float64, each segment's bound, >= 0; with 0 the segment arrives
            exactly.
        Raises: ValueError: another shape or dtype, or a bound that is not finite or below 0.
        """
        if tolerances is None:
            tolerances = torch.full(nbytes.shape, self.tolerance, dtype=torch.float64)
        check_bounds(tolerances, len(nbytes))
        kind = {"relative": self.mode == "rel", "encoder": self.encoder}
        return {"bounds": tolerances, "nbytes": nbytes, **kind}


register_codec(ErrorBounded, ErrorBounded(0.01))
