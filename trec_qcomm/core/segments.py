"""Segments, the rows of a buffer that are coded, and Encoded, the places of the encoded bytes.

A segment is the rows that one rank sends one peer for one (table, feature, column shard). It is the
unit of coding. Rows are read and written in the [batch, sum of dims] matrices of TorchRec. So a
segment is a strided block of a flat buffer, and nothing is copied into place.

Shapes: S segments, R coded rows in all, D values a row, W payload bytes.
"""

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
VALUE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # of rows; see core.codec
ALIGNMENT = 8  # bytes; every segment's bytes start and end on it, so kernels may load words


def aligned(nbytes: Tensor) -> Tensor:
    """Round [..] int64 byte counts up to `ALIGNMENT`."""
    return (nbytes + (ALIGNMENT - 1)) & -ALIGNMENT


def int64_tensor(numbers: Iterable[int]) -> Tensor:
    """Return [n] int64 of n ints. torch.tensor is slower: a microsecond for each int."""
    memory = array("q", numbers)
    if not memory:  # which frombuffer refuses
        return torch.zeros(0, dtype=torch.int64)
    return torch.frombuffer(memory, dtype=torch.int64)


def described(tensor: Tensor) -> str:
    """Return dtype, shape and layout of a tensor in words, for errors."""
    gaps = "" if tensor.is_contiguous() else ", not contiguous"
    return f"{tensor.dtype} {list(tensor.shape)}{gaps}"


def exclusive_cumsum(counts: Tensor) -> Tensor:
    """Return [S + 1] int64 offsets, starting at 0, of [S] int64 counts."""
    offsets = torch.zeros(len(counts) + 1, dtype=torch.int64)
    counts.numpy().cumsum(out=offsets.numpy()[1:])  # faster than torch on vectors this short
    return offsets


class SegmentNotes(Protocol):
    """Base of what is known about each of S segments besides its rows."""

    def subset(self, which: Tensor) -> "SegmentNotes":
        """Return the notes of some segments.

        Args: which: [T] int64, indices of the segments.
        """


@dataclass(frozen=True, eq=False)
class Segments:
    """A batch of S segments over R coded rows of `dim` values each.

    Value d of row i of segment s is `values.view(-1)[start[s] + i * stride[s] + d]`. This row has
    the number `offsets[s] + i` among the R coded rows of the batch.

    Args:
        offsets: [S + 1] int64 on CPU, from 0 to R, not decreasing.
        dim: D >= 1.
        start: [S] int64 on CPU, >= 0.
        stride: [S] int64 on CPU, in values, >= dim where there is more than one row.
        notes: what a comm.rows.doors.RowTransform tells the codec of these segments; None: nothing.
        numbers: [S] int64 on CPU, the number of each segment's first value; its other values are
            counted from there. Numbers key the noise of stochastic rounding. None: `offsets` times
            dim.
    Derived: num_rows: [S] int64.  extent: the number of values that a buffer must hold.
    Raises: ValueError: another shape, dtype or size.
    """

    offsets: Tensor
    dim: int
    start: Tensor
    stride: Tensor
    notes: SegmentNotes | None = None
    numbers: Tensor | None = None
    num_rows: Tensor = field(init=False)
    extent: int = field(init=False)
    _kept: dict[Hashable, tuple[Tensor, Any]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        num_segments = len(self.offsets) - 1
        names = ("offsets", "start", "stride") + ("numbers",) * (self.numbers is not None)
        for name in names:
            tensor = getattr(self, name)
            expected = num_segments + (name == "offsets")
            if tensor.dtype != torch.int64 or tensor.shape != (expected,) or tensor.is_cuda:
                raise ValueError(
                    f"Segments.{name}: expected [{expected}] int64 on CPU, got "
                    f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
                )
        if num_segments < 0 or self.dim < 1:
            raise ValueError(f"Segments: dim {self.dim} < 1, or offsets are empty")
        offsets, start, stride = self.arrays  # numpy is faster than torch on vectors this short
        num_rows = offsets[1:] - offsets[:-1]
        if offsets[0] != 0 or num_rows.min(initial=0) < 0:
            raise ValueError("Segments.offsets: must start at 0 and not decrease")
        if (start | stride).min(initial=0) < 0:
            raise ValueError("Segments: start and stride must be >= 0")
        if ((stride < self.dim) & (num_rows > 1)).any():
            raise ValueError(f"Segments.stride: rows of {self.dim} values would overlap")
        largest = (int(vector.max(initial=0)) for vector in (start, num_rows, stride))
        most_start, most_rows, most_stride = largest
        if most_start + most_rows * most_stride + self.dim >= 2**62:
            raise ValueError("Segments: start and stride reach beyond any buffer")
        ends = start + (num_rows - 1) * stride + self.dim
        object.__setattr__(self, "num_rows", torch.from_numpy(num_rows))
        object.__setattr__(self, "extent", int(ends.max(where=num_rows > 0, initial=0)))

    @cached_property
    def arrays(self) -> tuple[Any, Any, Any]:
        """Offsets, start and stride as numpy arrays over the same memory, for compiled kernels."""
        return self.offsets.numpy(), self.start.numpy(), self.stride.numpy()

    def kept(self, key: Hashable, at: Tensor, make: Callable[[], T]) -> T:
        """Return make(), or the result that an earlier call with this key and `at` made.

        So vectors on a device stay there while batches of equal sizes come again. Call it on one
        stream only: the memory goes back to the stream on which it was made.

        Args: at: [S] int64, where the segments' bytes begin; the result depends on nothing else
            besides the segments. It must be the same object each time, and nobody may change it.
        """
        kept_at, result = self._kept.get(key, (None, None))
        if kept_at is not at:
            result = make()
            self._kept[key] = at, result
        return result  # type: ignore[return-value]

    @property
    def num_segments(self) -> int:
        """Number S of segments."""
        return self.start.numel()

    @property
    def first_numbers(self) -> Tensor:
        """Number of each segment's first value, [S] int64: `numbers`, or its default."""
        return self.offsets[:-1] * self.dim if self.numbers is None else self.numbers

    @classmethod
    def packed(cls, num_rows: Sequence[int], dim: int) -> "Segments":
        """Return segments that follow one another in an [R, dim] matrix, with so many rows each."""
        offsets = exclusive_cumsum(torch.tensor(num_rows, dtype=torch.int64))
        stride = torch.full((len(num_rows),), dim, dtype=torch.int64)
        return cls(offsets, dim, offsets[:-1] * dim, stride)

    def check_fits(self, values: Tensor, dtypes: Sequence[torch.dtype] = (torch.float32,)) -> None:
        """Raise ValueError unless `values` is contiguous and holds every segment.

        Args: dtypes: the allowed dtypes of `values`.
        """
        if values.dtype not in dtypes or not values.is_contiguous():
            allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise ValueError(f"values: expected contiguous {allowed}, got {described(values)}")
        if values.numel() < self.extent:
            raise ValueError(f"values: holds {values.numel()} values, segments {self.extent}")

    def block(self, values: Tensor, segment: int) -> Tensor:
        """Return the rows of one segment, an [n, D] view of `values`.

        Use it in references, tests and measurements only: a call for each segment is slow.
        """
        shape = (int(self.num_rows[segment]), self.dim)
        return values.view(-1).as_strided(
            shape,
            (int(self.stride[segment]), 1),
            values.storage_offset() + int(self.start[segment]),
        )

    def nbytes_of_rows(self, row_nbytes: int) -> Tensor:
        """Return [S] int64, the aligned bytes of segments whose encoded rows have equal sizes.

        Later calls return the same object, which nobody may change.

        Args: row_nbytes: bytes of an encoded row.
        """

        def make() -> Tensor:
            nbytes = self.num_rows.numpy() * row_nbytes + (ALIGNMENT - 1)
            return torch.from_numpy(nbytes & -ALIGNMENT)

        return self.kept(row_nbytes, self.offsets, make)

    def subset(self, which: Tensor) -> "Segments":
        """Return the segments at some indices, in that order.

        Args: which: [T] int64, the indices.
        """
        return Segments(
            offsets=exclusive_cumsum(self.num_rows[which]),
            dim=self.dim,
            start=self.start[which],
            stride=self.stride[which],
            notes=None if self.notes is None else self.notes.subset(which),
            numbers=None if self.numbers is None else self.numbers[which],
        )

    def with_notes(self, notes: SegmentNotes) -> "Segments":
        """Return the same segments with notes. Both objects share the vectors that `kept` keeps."""
        noted = replace(self, notes=notes)
        object.__setattr__(noted, "_kept", self._kept)  # nothing in it depends on notes
        return noted

    def first_of(self, num_parts: int, begin: int = 0) -> "Segments":
        """Return the first of several parts of these segments, which must have the same rows.

        Args: begin: place in the buffer that becomes place 0 of the result.
        Raises: ValueError: the parts do not have the same rows, or lie in another order.
        """
        layout = (self.num_rows, self.stride, self.start)
        if self.num_segments % num_parts:
            raise ValueError(f"Segments: {self.num_segments} are not {num_parts} equal parts")
        num_rows, stride, start = (vector.view(num_parts, -1) for vector in layout)
        apart = start - start[:1]
        if not all(bool((v == v[:1]).all()) for v in (num_rows, stride, apart.T)):
            raise ValueError(f"Segments: {num_parts} parts that do not hold the same rows")
        first = self.subset(torch.arange(num_rows.shape[1]))
        return Segments(first.offsets, first.dim, first.start - begin, first.stride)


@dataclass(frozen=True, eq=False)
class Encoded:
    """Places of the bytes of S segments, in a buffer that may hold other bytes, too.

    Args:
        payload: [W] uint8.
        at: [S] int64 on CPU: segment s is payload[at[s] : at[s] + nbytes[s]].
        nbytes: [S] int64 on CPU, multiples of `ALIGNMENT`.
        flushed: [S] int64 on CPU, number of flushed values (core.stats.TableStats.num_flushed) of
            each segment. None: the encoder found none, or does not look for them.
        frames: frames that the decoder must check on a GPU (wire.frame.unseal); None: they were
            checked, or there are none.
    """

    payload: Tensor
    at: Tensor
    nbytes: Tensor
    flushed: Tensor | None = None
    frames: Any = None
