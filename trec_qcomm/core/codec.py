"""Codec, the base class of what turns rows into bytes and back, and Contract, a codec's promise.

A codec is a frozen dataclass: its fields are its config, its repr is the call that makes it, and it
keeps no state. One call handles a batch of segments. The caller knows tables, peers and steps; the
codec does not.

Rows are float32. Some codecs also take rows of float16 or bfloat16 (`for_values`). They read such
rows where they lie or from a float32 copy, and decode to the same dtype, rounded to nearest even.

The caller owns the memory. It asks `max_nbytes` and chooses a place for each segment, and `encode`
writes there. So fixed-size codecs write straight into the frames that are sent.
Shapes: S segments, W payload bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, ClassVar, Literal, Protocol, get_args, get_origin, runtime_checkable

import torch
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum


class Contract(Enum):
    """Promise about the difference between `decode(encode(x))` and x."""

    EXACT = "exact"  # no difference: bit-identical, with NaN payloads and signed zeros
    BOUNDED = "bounded"  # at most a bound that the config states, for every finite value
    UNBIASED = "unbiased"  # noise whose mean over seeds is 0
    BIASED = "biased"  # any other difference; use error feedback where residuals are kept


class Codec(ABC):
    """Encoder and decoder of rows. Several threads may call its methods at once.

    A subclass has a name, a wire id, a contract, and the methods `max_nbytes`, `encode` and
    `decode`. It overrides other attributes only where the defaults here do not fit. A field whose
    type is a Literal is checked when the codec is made. The module says what a codec is.
    """

    name: ClassVar[str]  # the word in YAML
    chooses_columns: ClassVar[bool] = False  # whether it keeps some columns of a row, in forward
    follows_forward: ClassVar[bool] = False  # whether it codes the columns that forward chose
    # Whether NaN and inf arrive. If not, the codec is BIASED and codes each row by itself: a row
    # decodes alone as it does among others.
    keeps_nonfinite: ClassVar[bool] = True
    # Whether its GPU kernels also seal and check the frames of what they code (ops.frames.gpu):
    # `encode` then takes an argument `frames`, and `decode` looks at those of `Encoded`.
    takes_frames: ClassVar[bool] = False
    only_for_gradients: ClassVar[bool] = False  # whether it keeps too little of rows to train with

    def __post_init__(self) -> None:
        for known in fields(self):  # type: ignore[arg-type]
            if get_origin(known.type) is Literal:
                value = getattr(self, known.name)
                check_choice(f"{self.name}.{known.name}", value, get_args(known.type))

    @property
    @abstractmethod
    def contract(self) -> Contract:
        """Promise that this configuration keeps."""

    @property
    @abstractmethod
    def wire_id(self) -> int:
        """Id in the frame that selects the decoder, 1..255 (wire/FORMAT.md)."""

    @property
    def fixed_size(self) -> bool:
        """Whether encoded sizes depend only on what both ends know.

        Both ends know the segments' shapes, and their masks where the codec reads masks.
        """
        return True

    @property
    def tolerance(self) -> float | None:
        """Number of the config that may be changed for each segment and step.

        It is the error bound of a BOUNDED codec, or a threshold. None: the codec has neither.
        """
        return None

    @property
    def has_gpu_kernels(self) -> bool:
        """Whether the codec takes rows in the memory of a GPU; else it is for CPUs."""
        return False

    @property
    def may_refuse(self) -> bool:
        """Whether `encode` may raise an UnencodableError; else it takes all values."""
        return False

    def for_values(self, dtype: torch.dtype) -> "Codec":
        """Return the codec for rows of a dtype: mostly the codec itself.

        Args: dtype: one of core.segments.VALUE_DTYPES.
        Raises: ValueError: the codec does not take such rows.
        """
        if dtype != torch.float32:
            raise ValueError(f"{self!r} does not take rows of {dtype}; allowed: torch.float32")
        return self

    def row_transform(self, plan: Any) -> Any:
        """Return what must see forward's rows when this codec codes their gradients; None: nothing.

        Args: plan: the comm.rows.exchange_plan.ExchangePlan of a collective.
        Returns: a comm.rows.doors.RowTransform.
        Raises: ValueError: exchanges of this plan cannot have this codec.
        """
        return None

    def check_dim(self, dim: int) -> None:  # noqa: B027 (most codecs take all)
        """Raise ValueError if the codec does not take rows of `dim` values."""

    @abstractmethod
    def max_nbytes(self, segments: Segments) -> Tensor:
        """Return [S] int64, the most bytes that each segment takes; exact if `fixed_size`.

        All are multiples of `ALIGNMENT`.
        """

    @abstractmethod
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
            seed: seed of stochastic rounding, 0 <= seed < 2^63. Equal seeds give equal bytes.
            tolerances: [S] float64 on CPU, one in place of `tolerance` for each segment. None:
                `tolerance` holds for all segments, or the codec has none.
        Raises: UnencodableError: a value that the config forbids.
        """

    @abstractmethod
    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Write the decoded rows to their places in `out`.

        Args: out: contiguous, any shape, the buffer for the rows; dtype as in `encode`.
        Raises: CorruptFrameError: nbytes do not fit the rows or the bytes are invalid.
        """


@runtime_checkable
class SummingCodec(Protocol):
    """Codec of fixed size that decodes and adds up the rows of several ranks in one pass."""

    def decode_sum(
        self, encoded: Encoded, segments: Segments, out: Tensor, *, held_at: int = -1
    ) -> None:
        """Write to `out` the sums of the rows of P parts, bit for bit as ops.batch.rank_sum adds.

        Args:
            encoded: for each part, for each segment, its bytes: [P S] places and sizes.
            segments: the rows of one part, and their places in `out`.
            out: float32, contiguous, any shape.
            held_at: the number of the part before which the rows that `out` holds are added; P:
                after all parts. -1: the rows in `out` are no term.
        Raises: CorruptFrameError: the same as `decode`; segment s of part p has the number p S + s.
        """


def adopt(codec_type: type) -> None:
    """Make a class count as a codec, if it has a codec's methods and does not derive from Codec.

    The class gets the defaults of the attributes that it lacks.
    """
    if not issubclass(codec_type, Codec):
        its = {*dir(codec_type), *getattr(codec_type, "__dataclass_fields__", ())}
        for name in vars(Codec).keys() - its - Codec.__abstractmethods__:
            if not name.startswith("_"):
                setattr(codec_type, name, vars(Codec)[name])
        Codec.register(codec_type)


def encode_alone(codec: Codec, values: Tensor, segments: Segments, **options: Any) -> Encoded:
    """Encode rows into new memory, segment after segment.

    The arguments are those of Codec.encode.
    """
    at = exclusive_cumsum(codec.max_nbytes(segments))
    payload = values.new_empty(int(at[-1]), dtype=torch.uint8)
    return codec.encode(values, segments, payload, at[:-1], **options)


def check_dim(codec: Codec, dim: int, where: str) -> None:
    """Raise ValueError if the codec does not take rows of `dim` values.

    Args: where: name of the table or field, for the error.
    """
    try:
        codec.check_dim(dim)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def check_choice(where: str, value: object, choices: Sequence[object]) -> None:
    """Raise ValueError unless `value` is one of `choices` and has its type: 4.0 is not 4."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ValueError(f"{where}: {value!r} is not one of {tuple(choices)}")
