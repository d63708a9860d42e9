"""The sign of each value and one magnitude a row. Wire: FORMAT.md, "sign".

Numerics: a row's values decode to plus or minus its mean magnitude, summed up in float64 from the
first column to the last and rounded to float32; of such numbers the mean is nearest in L2. A row
with NaN or inf keeps which values these are and nothing else: one kind as such, several as NaN,
and its finite values decode to 0.
Source: Seide et al. 2014 (1-bit SGD) and Karimireddy et al. 2019 (scaled sign with error feedback);
what is not finite is ours.
"""

from torch import Tensor

from trec_qcomm.core.checks import raise_first
from trec_qcomm.core.segments import Encoded, Segments, aligned
from trec_qcomm.ops.binding import Backend, arrays, check_buffers, gpu_kernels
from trec_qcomm.ops.sign import cpu, reference


def nbytes(segments: Segments) -> Tensor:
    """[S] int64: the exact size of each segment."""
    return aligned(segments.num_rows * (4 + (segments.dim + 7) // 8))


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    backend: Backend | None = None,
) -> Encoded:
    """Write the rows. See core.codec.Codec.encode. Raises ValueError: a shape, dtype or device."""
    sizes = nbytes(segments)
    backend = check_buffers(values, segments, payload, at, sizes, backend)
    if backend == "cpu":
        layout = arrays(segments.offsets, segments.start, segments.stride)
        cpu.encode(*arrays(values), *layout, segments.dim, *arrays(payload, at, sizes))
    else:
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        kernels.encode(values, segments, payload, at)
    return Encoded(payload, at, sizes)


def decode(
    encoded: Encoded, segments: Segments, out: Tensor, *, backend: Backend | None = None
) -> None:
    """Write the rows to `out`.

    Raises: ValueError as `encode`.  CorruptFrameError: a magnitude below 0; on a GPU when
        core.checks says.
    """
    backend = check_buffers(out, segments, encoded.payload, encoded.at, nbytes(segments), backend)
    if backend == "cpu":
        layout = arrays(segments.offsets, segments.start, segments.stride)
        bad = cpu.decode(*arrays(encoded.payload, encoded.at), *layout, segments.dim, *arrays(out))
    else:
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        bad = kernels.decode(encoded, segments, out)
    raise_first(bad, "a magnitude below 0")


__all__ = ["decode", "encode", "nbytes"]
