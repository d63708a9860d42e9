"""Codec, the interface that turns rows into bytes and back, and Contract, its promise.

A codec is a frozen dataclass: its fields are its config, its repr is the call that makes it, and
it keeps no state. One call handles a batch of segments. A codec does not know tables, peers or
steps; its caller does.

Rows are float32. Some codecs also take rows of float16 or bfloat16 (`for_values`): they read them
where they lie, without a float32 copy, and decode to the same dtype, rounded to nearest even.

The caller owns the memory. It asks `max_nbytes`, chooses a place for each segment, and `encode`
writes there. So fixed-size codecs write straight into the frames that are sent.
Shapes: S segments, W payload bytes.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments


class Contract(Enum):
    """Promise about the difference between `decode(encode(x))` and x."""

    EXACT = "exact"  # no difference: bit-identical, with NaN payloads and signed zeros
    BOUNDED = "bounded"  # at most a bound that the config states, for every finite value
    UNBIASED = "unbiased"  # noise whose mean over seeds is 0
    BIASED = "biased"  # any other difference; use error feedback where residuals are kept


class MaskUse(Enum):
    """Use that a codec makes of masks (ext.dct.masks), if it keeps only some columns of each row.

    Such a codec has an attribute `mask_use`; one without it keeps all columns and ignores masks.
    Callers read it by the function `mask_use`.
    """

    WRITES = "writes"  # chooses columns; encode and decode write them to the masks, if given
    READS = "reads"  # codes the columns that the masks name; ValueError without masks


@runtime_checkable
class Codec(Protocol):
    """Encoder and decoder of rows; see the module. Several threads may call its methods at once."""

    name: ClassVar[str]  # the word in YAML

    @property
    def fixed_size(self) -> bool:
        """Whether encoded sizes depend only on what both ends know.

        That is the segments' shape, and their masks where the codec reads masks.
        """
        ...

    @property
    def contract(self) -> Contract:
        """Promise that this configuration keeps."""
        ...

    @property
    def wire_id(self) -> int:
        """Id in the frame that selects the decoder, 1..255 (wire/FORMAT.md)."""
        ...

    @property
    def tolerance(self) -> float | None:
        """Number of the config that control may set for each segment and step.

        It is the error bound of a BOUNDED codec, or a threshold; None where there is neither.
        """
        ...

    def max_nbytes(self, segments: Segments) -> Tensor:
        """Return [S] int64, the most bytes that each segment takes; exact where `fixed_size`.

        All are multiples of `ALIGNMENT`.
        """
        ...

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
        """Write segment s of `values` to payload[at[s]:], at most max_nbytes[s] bytes.

        Args:
            values: contiguous, any shape, the buffer that holds the rows; float32, or another
                dtype that the codec takes.
            segments: where the rows lie in `values`.
            payload: [W] uint8, same device, to be written.
            at: [S] int64 on CPU, multiples of `ALIGNMENT`.
            seed: seed of stochastic rounding, 0 <= seed < 2^63; one seed, one result.
            tolerances: [S] float64 on CPU, in place of `tolerance`; None where `tolerance` holds
                for all segments, or the codec has none.
        Raises: UnencodableError: a value that the config forbids.
        """
        ...

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Write the rows to their places in `out`: contiguous, any shape, dtype as in `encode`.

        Raises: CorruptFrameError: nbytes do not fit the rows or the bytes are invalid.
        """
        ...


def mask_use(codec: Codec) -> MaskUse | None:
    """Return how the codec uses masks, or None if it keeps all columns."""
    use: MaskUse | None = getattr(codec, "mask_use", None)
    return use


def has_gpu_kernels(codec: Codec) -> bool:
    """Return whether the codec codes rows in the memory of a GPU.

    Such a codec has an attribute `has_gpu_kernels`; one without it is for CPUs.
    """
    return bool(getattr(codec, "has_gpu_kernels", False))


def row_transform(codec: Codec, plan: Any) -> Any:
    """Return what must see forward's rows, where the codec is for their gradients.

    Such a codec has a method `row_transform` that takes the comm.rows.exchange_plan.ExchangePlan
    and returns a comm.rows.doors.RowTransform. One without needs none: None.

    Raises: ValueError: exchanges of this plan cannot have it.
    """
    make = getattr(codec, "row_transform", None)
    return None if make is None else make(plan)


def only_for_gradients(codec: Codec) -> bool:
    """Return whether the codec keeps too little of rows themselves to train with.

    Such a codec has an attribute `only_for_gradients`.
    """
    return bool(getattr(codec, "only_for_gradients", False))


def keeps_nonfinite(codec: Codec) -> bool:
    """Return whether NaN and inf arrive, as they do unless an attribute `keeps_nonfinite` is False.

    A codec that loses them says what they become, and is BIASED.
    """
    return bool(getattr(codec, "keeps_nonfinite", True))


def may_refuse(codec: Codec) -> bool:
    """Return whether `encode` may raise an UnencodableError.

    Such a codec has an attribute `may_refuse`; one without it takes all values.
    """
    return bool(getattr(codec, "may_refuse", False))


def for_values(codec: Codec, dtype: torch.dtype) -> Codec:
    """Return the codec for rows of a dtype: mostly the codec itself.

    A codec that takes rows of float16 and bfloat16 has a method `for_values` that returns it. One
    without takes float32 alone.

    Args: dtype: one of core.segments.VALUE_DTYPES.
    Raises: ValueError: the codec does not take such rows.
    """
    if dtype == torch.float32:
        return codec
    make = getattr(codec, "for_values", None)
    if make is None:
        raise ValueError(f"{codec!r} does not take rows of {dtype}; allowed: torch.float32")
    chosen: Codec = make(dtype)
    return chosen


@runtime_checkable
class SummingCodec(Codec, Protocol):
    """Codec of fixed size that decodes what several ranks sent and adds it up in one pass."""

    def decode_sum(
        self, encoded: Encoded, segments: Segments, out: Tensor, *, held_at: int = -1
    ) -> None:
        """Write to `out` the sums of the rows of P parts, with the bits of ops.rank_sum.

        Args:
            encoded: for each part, for each segment, its bytes: [P S] places and sizes.
            segments: the rows of one part, and their places in `out`.
            out: float32, contiguous, any shape.
            held_at: the place among the terms of what `out` holds: before this part, or P. -1: it
                is none.
        Raises: CorruptFrameError: as `decode`; segment s of part p has the number p S + s.
        """
        ...


def check_dim(codec: Codec, dim: int, where: str) -> None:
    """Raise ValueError where the codec does not take rows of `dim` values.

    Such a codec has a method `check_dim` that raises it; one without takes all.

    Args: where: name of the table or field, for the error.
    """
    check = getattr(codec, "check_dim", None)
    if check is not None:
        try:
            check(dim)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error


def check_choice(where: str, value: object, choices: Sequence[object]) -> None:
    """Raise ValueError unless `value` is one of `choices`, of the same type: 4.0 is not 4."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ValueError(f"{where}: {value!r} is not one of {tuple(choices)}")
