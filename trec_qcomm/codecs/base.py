"""KernelCodec, the base of codecs that check their arguments and call kernels, and its subclasses.

An op is a package of kernels. Its modules `reference`, `cpu` and `gpu` have the same functions
(trec_qcomm/ops/__init__.py). The memory in which the rows lie chooses the module.

Knows: sizes, backends, errors. Does not know: formats.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from trec_qcomm.core.checks import MakeError, raise_first
from trec_qcomm.core.codec import Codec, Contract
from trec_qcomm.core.errors import UnencodableError
from trec_qcomm.core.segments import VALUE_DTYPES, Encoded, Segments
from trec_qcomm.ops.dispatch import check_buffers, check_seed, check_sizes, kernels_of, num_parts_of

Options = dict[str, Any]  # keyword arguments of kernels
Rounding = Literal["nearest", "stochastic"]
STOCHASTIC: dict[Rounding, bool] = {"nearest": False, "stochastic": True}


class KernelCodec(Codec):
    """Codec that calls the kernels of one op.

    A subclass names the op and gives the options of its kernels. core.codec.Codec documents all
    methods.
    """

    op: ClassVar[str]  # the package of its kernels

    @property
    def damage(self) -> str | MakeError:
        """Reason of the error where the kernels refuse bytes; empty if they refuse none."""
        return ""

    @property
    def refusal(self) -> str:
        """Reason of the error where the codec refuses values; empty if it refuses none."""
        return ""

    @property
    def value_dtypes(self) -> Sequence[torch.dtype]:
        """Dtypes that rows may have."""
        return VALUE_DTYPES[:1]

    @property
    def options(self) -> Options:
        """Options of the decoding kernels."""
        return {}

    def encoder_options(self, nbytes: Tensor, seed: int, tolerances: Tensor | None) -> Options:
        """Return the options of the kernel that encodes. Raise ValueError for bad arguments.

        Args: nbytes: [S] int64, the most bytes of each segment; a kernel may replace them by the
            bytes that it wrote.
        """
        return self.options

    def encode(
        self,
        values: Tensor,
        segments: Segments,
        payload: Tensor,
        at: Tensor,
        *,
        seed: int = 0,
        tolerances: Tensor | None = None,
        frames: Any = None,
    ) -> Encoded:
        """Write the encoded rows to `payload`.

        Args: frames: where `takes_frames`, the frames that a GPU shall seal (wire.frame.for_codecs)
            while it encodes; None: none.
        """
        nbytes = self.max_nbytes(segments)
        options = self.encoder_options(nbytes, seed, tolerances)
        if frames is not None:
            options = {**options, "frames": frames}
        backend = check_buffers(values, segments, payload, at, nbytes, dtypes=self.value_dtypes)
        encode = kernels_of(self.op, backend).encode
        refused, flushed = encode(values, segments, payload, at, **options)
        if self.may_refuse and (first := int(refused)) >= 0:  # waits for a GPU
            raise UnencodableError(self.refusal, segment=first)
        return Encoded(payload, at, nbytes, flushed)

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Write the decoded rows to `out`, in the dtype of `out`."""
        if self.fixed_size:
            check_sizes(encoded, self.max_nbytes(segments))
        buffers = out, segments, encoded.payload, encoded.at, encoded.nbytes
        kernels = kernels_of(self.op, check_buffers(*buffers, dtypes=self.value_dtypes))
        raise_first(kernels.decode(encoded, segments, out, **self.options), self.damage)


class RowCodec(KernelCodec):
    """Codec of fixed size: a segment is rows of equal sizes.

    Its kernels of a GPU take frames (core.codec.Codec.takes_frames).
    """

    has_gpu_kernels = True

    def __init_subclass__(cls) -> None:
        # Methods of another module may not hand the frames on to the kernels.
        names = (name for name in ("encode", "decode", "decode_sum") if hasattr(cls, name))
        cls.takes_frames = all(getattr(cls, name).__module__ == __name__ for name in names)

    @abstractmethod
    def row_nbytes(self, dim: int) -> int:
        """Return the bytes of an encoded row of `dim` values."""

    def max_nbytes(self, segments: Segments) -> Tensor:
        """Return [S] int64, the exact bytes of each segment."""
        return segments.nbytes_of_rows(self.row_nbytes(segments.dim))


class SummingRowCodec(RowCodec):
    """RowCodec whose kernels also add up the rows of several parts (core.codec.SummingCodec)."""

    def decode_sum(
        self, encoded: Encoded, segments: Segments, out: Tensor, *, held_at: int = -1
    ) -> None:
        """Write the sums of the rows of several parts to `out`."""
        num_parts = num_parts_of(encoded, segments, held_at)
        sizes = self.max_nbytes(segments)
        check_sizes(encoded, sizes if num_parts == 1 else sizes.repeat(num_parts))
        buffers = out, segments, encoded.payload, encoded.at, encoded.nbytes
        kernels = kernels_of(self.op, check_buffers(*buffers, num_parts=num_parts))
        first = kernels.decode_sum(encoded, segments, out, **self.options, held_at=held_at)
        raise_first(first, self.damage)


class RoundingCodec(RowCodec):
    """RowCodec with a field `rounding`: to nearest, or stochastic by a seed."""

    rounding: Rounding

    @property
    def contract(self) -> Contract:
        """Promise of this configuration: UNBIASED with stochastic rounding, else BIASED."""
        return Contract.UNBIASED if self.rounding == "stochastic" else Contract.BIASED

    def encoder_options(self, nbytes: Tensor, seed: int, tolerances: Tensor | None) -> Options:
        """Return the options of the kernel that encodes. Raise ValueError for a bad seed."""
        check_seed(seed)
        return {**self.options, "stochastic": STOCHASTIC[self.rounding], "seed": seed}
