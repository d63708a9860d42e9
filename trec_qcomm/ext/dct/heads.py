"""Headers and values of segments, which the formats topk, forward_mask and threshold share.

Positions follow the values, and differ between the formats. Segment bytes: FORMAT.md, "topk".
Shapes: S segments, K kept values.
"""

import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, aligned
from trec_qcomm.core.transfer import download
from trec_qcomm.ext.buffers import item_places, new_bytes, segment_ids, starts_of, take_bytes
from trec_qcomm.ext.dct.values import (
    DTYPES,
    FP32,
    INT8,
    NBYTES,
    load_values,
    scales_of,
    store_values,
)

HEADER_NBYTES, MASKED_HEADER_NBYTES = 12, 8
BAD_SIZE = "its size is not what its header implies"
BAD_FORM = "unknown kind of values or positions"
BAD_SCALE = "a scale that is not a normal number > 0"
BAD_COUNT = "more values kept than there are"
BAD_PLACES = "positions that do not name the values kept"
_FLT_MAX, _FLT_MIN = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny


class Layout:
    """Sizes of segments, and where their parts begin in a separate buffer.

    All attributes are [S] int64 on CPU, in bytes. Segment s has `nbytes[s]` bytes and begins at
    `start[s]`. Its values begin at `values[s]`, its positions at `positions[s]`.
    """

    def __init__(
        self,
        num_kept: Tensor,
        value_nbytes: int | Tensor,
        positions_nbytes: Tensor | int,
        header_nbytes: int = HEADER_NBYTES,
    ) -> None:
        """Lay out segments. Args: num_kept: [S] int64 on CPU; the others are one or [S] numbers."""
        before_positions = header_nbytes + num_kept * value_nbytes
        self.nbytes = aligned(before_positions + positions_nbytes)
        self.start = starts_of(self.nbytes)
        self.values = self.start + header_nbytes
        self.positions = self.start + before_positions


def write_heads(
    kept: Tensor, num_kept: Tensor, layout: Layout, *, kind: int, forms: Tensor | None
) -> Tensor:
    """Return a buffer with headers and values; all bytes after them are 0.

    Args:
        kept: [K] float32, the values of all segments.
        num_kept: [S] int64 on CPU, how many values each segment has.
        kind: code of the values' format, the field `values`.
        forms: [S] int64 on CPU, the second byte of each header; None: headers end after the scale.
    """
    device, buffer = kept.device, new_bytes(layout.nbytes, kept.device)
    segment = segment_ids(num_kept, device)
    scales = scales_of(kept, segment, len(num_kept), kind)
    words, first = buffer.view(torch.int32), (layout.start // 4).to(device)
    words[first] = kind
    words[first + 1] = scales.view(torch.int32)
    if forms is not None:
        words[first] += (forms << 8).to(torch.int32).to(device)
        words[first + 2] = num_kept.to(torch.int32).to(device)
    places = item_places(layout.values // NBYTES[kind], num_kept, device)
    buffer.view(DTYPES[kind])[places] = store_values(kept, kind, scales[segment])
    return buffer


class Heads:
    """Headers of received segments, checked; their bytes are in a separate buffer.

    Attributes:
        buffer: the bytes of all segments.
        kinds, forms, num_kept: [S] int64 on CPU.
    """

    def __init__(self, encoded: Encoded, numels: Tensor, *, header_nbytes: int) -> None:
        """Read the headers.

        Args: numels: [S] int64 on CPU, the most values that each segment may keep; or how many it
            keeps, if its header does not say so.
        Raises: CorruptFrameError: a field that no encoder writes.
        """
        self._nbytes = encoded.nbytes
        too_short = (encoded.nbytes < header_nbytes) | (encoded.nbytes % 8 != 0)
        raise_first((BAD_SIZE, too_short))
        self.buffer = take_bytes(encoded.payload, encoded.at, encoded.nbytes)
        first = (starts_of(encoded.nbytes) // 4).to(self.buffer.device)
        words = self.buffer.view(torch.int32)
        self._scales = words[first + 1].view(torch.float32)
        head = download(torch.stack([words[first], words[first + 1], words[first + 2]]))
        scales = head[1].view(torch.float32)
        self.kinds, self.forms = (head[0] & 0xFF).long(), (head[0] >> 8 & 0xFF).long()
        self.num_kept = numels
        if header_nbytes == HEADER_NBYTES:
            self.num_kept = head[2].long() & 0xFFFFFFFF
        is_normal = (scales >= _FLT_MIN) & (scales <= _FLT_MAX)
        raise_first(
            (BAD_FORM, self.kinds > INT8),
            (BAD_SCALE, (self.kinds != FP32) & ~is_normal),
            (BAD_COUNT, self.num_kept > numels),
        )

    def layout(self, positions_nbytes: Tensor | int, header_nbytes: int = HEADER_NBYTES) -> Layout:
        """Return the places of the segments' parts. Raise CorruptFrameError unless sizes agree."""
        value_nbytes = torch.tensor(NBYTES)[self.kinds]
        layout = Layout(self.num_kept, value_nbytes, positions_nbytes, header_nbytes)
        raise_first((BAD_SIZE, layout.nbytes != self._nbytes))
        return layout

    def values(self, layout: Layout) -> Tensor:
        """Return [K] float32, the values of all segments."""
        device = self.buffer.device
        segment = segment_ids(self.num_kept, device)
        scales, kinds = self._scales[segment], sorted(set(self.kinds.tolist()))
        kept = torch.empty(len(segment), device=device)
        for kind in kinds:  # one, unless senders disagree
            is_kind = self.kinds == kind
            places = item_places(layout.values // NBYTES[kind], self.num_kept * is_kind, device)
            stored = self.buffer.view(DTYPES[kind])[places]
            if len(kinds) == 1:
                return load_values(stored, kind, scales)
            chosen = is_kind.to(device)[segment]
            kept[chosen] = load_values(stored, kind, scales[chosen])
        return kept


def scatter_kept(keep: Tensor, kept: Tensor) -> Tensor:
    """Return float32 of the shape of `keep`: the values where `keep` is true, else 0.

    Values are copied as bits, so that a signalling NaN stays one.
    """
    rows = torch.zeros(keep.shape, dtype=torch.int32, device=keep.device)
    return rows.masked_scatter_(keep, kept.view(torch.int32)).view(torch.float32)


def raise_first(*checks: tuple[str, Tensor]) -> None:
    """Raise CorruptFrameError for the first segment that one of the checks finds bad.

    Args: checks: pairs of a reason and [S] bool on CPU, whether a segment is bad. If several
        reasons hold for a segment, the first one counts.
    """
    bad = torch.stack([is_bad for _, is_bad in checks])
    if bool(bad.any()):
        segment = int(bad.any(0).int().argmax())
        reason = checks[int(bad[:, segment].int().argmax())][0]
        raise CorruptFrameError(reason, segment=segment)


def raise_first_item(bad: Tensor, segment: Tensor, num_segments: int) -> None:
    """Raise CorruptFrameError for the first segment with a bad position.

    Args: bad: [N] bool, on any device.  segment: [N] int64, the segment of each position.
    """
    is_bad = torch.zeros(num_segments, dtype=torch.bool, device=bad.device)
    is_bad[segment[bad]] = True
    raise_first((BAD_PLACES, download(is_bad)))
