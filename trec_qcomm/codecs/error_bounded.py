"""Codec error_bounded: every value within a bound that you state.

With bitpack, normally distributed rows become 6x smaller at 1 % of the range, and 8x at 3 %.
Source: Feng et al., SC'24 (error-bounded compression of the embedding all-to-all, one bound a
table); SZ3 (a quantizer that checks each value).
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from trec_qcomm.codecs.base import KernelCodec, Options
from trec_qcomm.core.checks import MakeError
from trec_qcomm.core.codec import Contract
from trec_qcomm.core.fields import Range, check_fields
from trec_qcomm.core.registry import register_codec
from trec_qcomm.core.segments import Segments
from trec_qcomm.ops.dispatch import check_bounds
from trec_qcomm.ops.error_bound import error_of, fill_max_nbytes

Mode = Literal["rel", "abs"]
Encoder = Literal["bitpack", "vector_lz", "rans"]


@dataclass(frozen=True)
class ErrorBounded(KernelCodec):
    """Codec that keeps |x - decoded| <= error bound for every finite value, without slack.

    NaN and inf survive. Rows that would not become smaller are sent as they are, with 8 bytes more
    for the segment. A segment arrives exactly if its finite values are all equal, or if its bound
    is too small or too large for float32 (a step of 2 error bounds and its inverse must be normal
    numbers).

    Args:
        bound: with mode `rel`, the error bound as a fraction of max - min over the finite values of
            the segment: the rows that one rank sends one peer for one table in one step. So each
            table, and each step, is coded at its own scale. 0 < bound < 1; 0.01 is 1 %.
            With mode `abs`, the error bound itself, in units of the values.
        mode: what `bound` means.
        encoder: how the integers round(x / (2 error bound)) become bytes. `bitpack`: at the speed
            of memory. `rans`: entropy coded, a tenth to a fifth smaller and several times slower.
            `vector_lz`: bitpack with repeated rows sent once; not on a GPU. Which is fastest for
            a table's rows, `python -m trec_qcomm preview` measures.
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
        """The bound, in the unit that `mode` gives it."""
        return float(self.bound)

    @property
    def damage(self) -> MakeError:
        """Function that makes the error from what its kernels return."""
        return error_of

    @property
    def has_gpu_kernels(self) -> bool:
        """Whether it runs on a GPU: all encoders do but vector_lz, which looks for copies, one row
        after the other."""
        return self.encoder != "vector_lz"

    def max_nbytes(self, segments: Segments) -> Tensor:
        """Return [S] int64, what raw rows take in bytes. All methods: core.codec.Codec."""
        sizes = torch.empty(segments.num_segments, dtype=torch.int64)
        fill_max_nbytes(segments.num_rows.numpy(), segments.dim, sizes.numpy())
        return sizes

    def encoder_options(self, nbytes: Tensor, seed: int, tolerances: Tensor | None) -> Options:
        """Return the options of the kernel that encodes.

        Args: tolerances: each segment's bound, >= 0; with 0 the segment arrives exactly.
        Raises: ValueError: bounds that are none.
        """
        if tolerances is None:
            tolerances = torch.full(nbytes.shape, self.tolerance, dtype=torch.float64)
        check_bounds(tolerances, len(nbytes))
        kind = {"relative": self.mode == "rel", "encoder": self.encoder}
        return {"bounds": tolerances, "nbytes": nbytes, **kind}


register_codec(ErrorBounded, ErrorBounded(0.01))
