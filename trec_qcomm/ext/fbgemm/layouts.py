"""Layouts of FBGEMM's coded rows: which dims each precision takes, and the bytes of a row.

Knows: sizes. Does not know: FBGEMM, which need not be installed. D: values of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass

LARGEST_GROUP = 32  # of mx4, FBGEMM's own default


@dataclass(frozen=True)
class Layout:
    """Layout of a coded row.

    Args:
        multiple: number of which D must be a multiple.
        row_nbytes: function of D, the bytes of a coded row.
        reason: why D must be such a multiple.
    """

    multiple: int
    row_nbytes: Callable[[int], int]
    reason: str = ""


def mx4_group(dim: int) -> int:
    """Return how many values of a row share an exponent.

    It is the largest of 32, 16 and 8 that divides `dim`, a multiple of 8.
    """
    return min(LARGEST_GROUP, dim & -dim)


_PADDED = "FBGEMM pads others on a GPU, and not on a CPU"
_HALVES = "FBGEMM's scale must begin at an even byte"
_FP8 = Layout(4, lambda dim: dim + 8, "FBGEMM decodes others to longer rows")
LAYOUTS = {
    "int8": Layout(4, lambda dim: dim + 8, _PADDED),
    "int4": Layout(4, lambda dim: dim // 2 + 4, _HALVES),
    "int2": Layout(8, lambda dim: dim // 4 + 4, _HALVES),
    "fp8": _FP8,
    "fp8_e5m2": _FP8,
    "mx4": Layout(
        8, lambda dim: dim // 2 + dim // mx4_group(dim), "a group may not reach into the next row"
    ),
    "fp16": Layout(1, lambda dim: 2 * dim),
    "bf16": Layout(1, lambda dim: 2 * dim),
}


def check_dim(precision: str, dim: int) -> None:
    """Raise ValueError unless FBGEMM codes rows of `dim` values with this precision."""
    layout = LAYOUTS[precision]
    if dim % layout.multiple:
        raise ValueError(
            f"codec fbgemm, precision {precision}: rows of {dim} values; "
            f"allowed: multiples of {layout.multiple} ({layout.reason})"
        )
