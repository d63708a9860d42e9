"""Codec fbgemm: rows coded by FBGEMM's own operators, in FBGEMM's layout.

For who comes from TorchRec's QCommsConfig and wants the same values, and where FBGEMM's kernels are
the faster ones.
Source: FBGEMM's quantize_comm.py, quantize_ops; Yang et al. 2020 (int8, bf16), Rouhani et al. 2023
(mx4).
"""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from trec_qcomm.codecs.base import Options, RowCodec
from trec_qcomm.core.codec import Contract
from trec_qcomm.core.registry import register_codec
from trec_qcomm.ext.fbgemm.layouts import LAYOUTS, check_dim
from trec_qcomm.ext.fbgemm.operators import is_installed

Precision = Literal["int8", "int4", "int2", "fp8", "fp8_e5m2", "mx4", "fp16", "bf16"]
NonFinite = Literal["lost", "raise"]
_WIRE_IDS = {name: 14 + n for n, name in enumerate(get_args(Precision))}


@dataclass(frozen=True)
class Fbgemm(RowCodec):
    """Codec that sends rows as FBGEMM codes them, with FBGEMM's rounding, to nearest.

    Take it to keep the values of TorchRec's QCommsConfig, to have FP8 or MX4 at all, or where a
    measurement on your device says that it is faster. Else take `cast`, `rowwise` or `float6`: they
    keep NaN and inf, take any dim, are smaller at equal bits (`rowwise` 8: D + 4 bytes a row),
    round stochastically where asked, lose no small gradients, and code rows where they lie, without
    the two copies that FBGEMM's contiguous rows take.

    A ValueError says that FBGEMM is not installed, or, when the model is sharded, that a precision
    does not take a dim D (of column-wise tables: the dim of a shard) or a `block` of `dense`.

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
    int8, int4 and int2 another way in the last bit. We have run none of them. On a CPU mx4 is
    FBGEMM's own Python code and slow, and fp8 puts rows together from FBGEMM's operator for single
    values, since FBGEMM codes FP8 rows on GPUs only.

    Args:
        precision: format of a row, above.
        nonfinite: `lost`: NaN and inf become what is said above. `raise`: they raise an
            UnencodableError; on a GPU every encode waits for that.
    Raises: ValueError: FBGEMM is not installed.
    """

    precision: Precision
    nonfinite: NonFinite = "lost"

    name = "fbgemm"
    op = "trec_qcomm.ext.fbgemm"
    keeps_nonfinite = False
    contract = Contract.BIASED
    refusal = "NaN or inf (nonfinite: raise)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_installed():
            raise ValueError(
                "codec fbgemm: FBGEMM is not installed: pip install fbgemm-gpu, without CUDA "
                "fbgemm-gpu-cpu, of the version that belongs to this torch"
            )

    @property
    def may_refuse(self) -> bool:
        """Whether it may raise an UnencodableError."""
        return self.nonfinite == "raise"

    @property
    def wire_id(self) -> int:
        """Id in the frame: 14 to 21, in the order of Precision."""
        return _WIRE_IDS[self.precision]

    @property
    def options(self) -> Options:
        """Options of its kernels."""
        return {"precision": self.precision}

    def encoder_options(self, nbytes: Tensor, seed: int, tolerances: Tensor | None) -> Options:
        """Return the options of the kernel that encodes."""
        return {**self.options, "refuses": self.may_refuse}

    def check_dim(self, dim: int) -> None:
        """Raise ValueError unless FBGEMM codes rows of `dim` values with this precision."""
        check_dim(self.precision, dim)

    def row_nbytes(self, dim: int) -> int:
        """Return the bytes of a coded row. Raise ValueError for rows that it does not take."""
        check_dim(self.precision, dim)
        return LAYOUTS[self.precision].row_nbytes(dim)


# Without FBGEMM the name is known, to say what is missing, and no frame can be read.
register_codec(Fbgemm, *(Fbgemm(p) for p in get_args(Precision) if is_installed()))
