"""Error-bounded quantization of whole segments. Wire: FORMAT.md, "error_bounded".

There is no predictor. The *quantizer* turns values into indices, q = round(x / step) with step = 2
* bound, one step a segment. An *encoder* packs the indices: bitpack, rans or vector_lz. Each value
is checked against the value that the receiver will decode. A value outside the bound, NaN and
infinities are sent *verbatim*, as float32. A segment without a range or without a usable step is
lossless.

`reference` is the definition. `cpu` quantizes and bit-packs group by group; `rans_segments`
collects all indices of a segment first. `gpu` has the kernels. `quantizer` is the first half on
both devices. vector_lz is an extension, whose module is imported when it is needed; on a CPU its
segments go through `reference`.

Numerics: |x - decoded| <= bound in exact arithmetic, no slack, for every finite x; NaN (with its
payload) and infinities survive; -0.0 may become 0.0. A bound of 0 is lossless.

Source: SZ3 (a quantizer that checks each value); Feng et al., SC'24 (no predictor, one bound a
table).
"""

from typing import Any

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.jit import kernel

HEADER_NBYTES = 8
NUM_REASONS = 8  # a decoder returns this times the number of a bad segment, plus a reason
_REASONS = (  # numbered as in cpu.py
    "",
    "nbytes, padding and number of verbatim values do not fit the rows",
    "unknown encoder of indices",
    "the step is not a normal number > 0",
    "invalid indices",
    "positions of verbatim values do not increase or are out of range",
    "its encoder of indices, vector_lz, is none that a GPU decodes",
)


def error_of(code: int) -> CorruptFrameError:
    """Return the error for the code that a decoder returned. Args: code: >= 0; see NUM_REASONS."""
    segment, reason = divmod(code, NUM_REASONS)
    return CorruptFrameError(_REASONS[reason], segment=segment)


def _max_nbytes(num_rows: Any, dim: int, out: Any) -> None:
    """Write the size of each segment [S] with its rows sent raw; 0 for one without rows."""
    for s in range(out.size):
        num_values = num_rows[s] * dim
        out[s] = HEADER_NBYTES + (4 * num_values + 7) // 8 * 8 if num_values else 0


# Compiled, because torch and numpy take longer on vectors this short: see dispatch.py.
fill_max_nbytes: Any = kernel(_max_nbytes)
