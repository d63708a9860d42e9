"""The sign of each value and one magnitude a row. Wire: FORMAT.md, "sign".

Numerics: a row's values decode to plus or minus its mean magnitude, summed in float64 from the
first column to the last and rounded to float32; of all single magnitudes the mean has the least L2
error. In a row with NaN or inf only the places of these arrive: if all are +inf, or all -inf, as
such; otherwise each as NaN. Its finite values decode to 0.
Source: Seide et al. 2014 (1-bit SGD) and Karimireddy et al. 2019 (scaled sign with error feedback);
the treatment of NaN and inf is ours.
"""

from torch import Tensor

from trec_qcomm.core.checks import raise_first
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops.dispatch import Backend, arrays, check_buffers, gpu_kernels
from trec_qcomm.ops.sign import cpu, reference


def nbytes(segments: Segments) -> Tensor:
    """Return [S] int64, the exact size of each segment in bytes."""
    return segments.nbytes_of_rows(4 + (segments.dim + 7) // 8)


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    backend: Backend | None = None,
) -> Encoded:
    """Encode the rows. Arguments: core.codec.Codec.encode.

    Raises: ValueError: a wrong shape, dtype or device.
    """
    sizes = nbytes(segments)
    backend = check_buffers(values, segments, payload, at, sizes, backend)
    if backend == "cpu":
        layout = segments.arrays
        cpu.encode(*arrays(values), *layout, segments.dim, *arrays(payload, at, sizes))
    else:
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        kernels.encode(values, segments, payload, at)
    return Encoded(payload, at, sizes)


def decode(
    encoded: Encoded, segments: Segments, out: Tensor, *, backend: Backend | None = None
) -> None:
    """Decode the rows into `out`.

    Raises:
        ValueError: a wrong shape, dtype or device.
        CorruptFrameError: a magnitude below 0; on a GPU raised when core.checks says.
    """
    backend = check_buffers(out, segments, encoded.payload, encoded.at, nbytes(segments), backend)
    if backend == "cpu":
        layout = segments.arrays
        bad = cpu.decode(*arrays(encoded.payload, encoded.at), *layout, segments.dim, *arrays(out))
    else:
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        bad = kernels.decode(encoded, segments, out)
    raise_first(bad, "a magnitude below 0")


__all__ = ["decode", "encode", "nbytes"]
