"""Codec fbgemm: rows coded by FBGEMM's own operators, in FBGEMM's layout.

For who comes from TorchRec's QCommsConfig and wants the same values, and where FBGEMM's kernels are
the faster ones. Else take `cast`, `rowwise` or `float6`: they keep NaN and inf, take rows of any
length and are smaller at equal bits.
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

    What becomes of a row that holds NaN or inf, or whose max - min is beyond float32, on a CPU:
        int8, int4, int2  NaN becomes the row's lowest value; a row with inf becomes NaN
        fp8, fp8_e5m2     NaN becomes plus or minus the row's largest magnitude; a row with inf
                          becomes inf and NaN
        mx4               the group of values that it is in becomes 0
        fp16, bf16        NaN arrives; inf, and what is beyond the format, become its largest value
    On a GPU kernels treat them in other ways (mx4: as the largest value of its group). Of small
    values int8 loses rows narrower than 1e-20, int4 and int2 those narrower than 6e-8, and they
    take magnitudes up to 65504 only: beyond, a row becomes NaN.

    Args:
        precision: int8 (scale and lowest value of a row as float32), int4 and int2 (as float16),
            fp8 (e4m3 under a scale a row: what FBGEMM takes forward), fp8_e5m2 (backward), mx4
            (e2m1; 32 values share a power of two, or 16 or 8 where D is no multiple of 32), fp16,
            bf16.
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
