"""Segments that were encoded in a GPU's memory, with sizes that the host does not know yet.

Knows: frames, slots, encoders. Does not know: process groups, which codec.
Shapes: P frames, S segments in all; T tables.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.comm.frames.coding import encode_segments
from trec_qcomm.comm.frames.plan import PlacedFrames, joined
from trec_qcomm.comm.slots.extents import Extents
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.transfer import leaving_sizes, upload
from trec_qcomm.wire import cpu, frame, slot


@dataclass(frozen=True, eq=False)
class EncodedOnDevice:
    """Encoded segments of P frames, in places that are as large as they may be.

    Args:
        placed: the rows and their frames.
        payload: [W] uint8 on the device.
        nbytes: [S] int64 on the device.
        call: number of the exchange.
    """

    placed: PlacedFrames
    payload: Tensor
    nbytes: Tensor
    call: int

    @classmethod
    def from_rows(
        cls,
        values: Tensor,
        placed: PlacedFrames,
        *,
        call: int,
        seed: int,
        traffic: Traffic,
        measure: bool,
        tolerances: Tensor | None,
        decoded: Tensor | None = None,
    ) -> "EncodedOnDevice":
        """Encode rows; the arguments are those of frames.coding.encode_frames."""
        layout = placed.layout(frame.alignment_of(values))
        size = sum(layout.frame_nbytes)
        payload = torch.empty(size, dtype=torch.uint8, device=values.device)
        with leaving_sizes():
            sizes = encode_segments(
                values, placed, payload, seed=seed, traffic=traffic, measure=measure,
                counted=True, tolerances=tolerances, decoded=decoded,
            )  # fmt: skip
        return cls(placed, payload, _joined_on_device(placed, sizes, values.device), call)

    @property
    def _at(self) -> Tensor:
        """Places of the segments in `payload`, [S] int64."""
        return self.placed.layout(frame.alignment_of(self.payload)).at

    def slots(self, capacities: Any) -> Tensor:
        """Return the frames in slots, as far as they fit. capacities: [P] numpy int64."""
        plan, placed = self.placed.plan, self.placed
        counts = np.asarray(plan.segments_per_frame, np.int64)
        overheads, full = Extents.from_placed(placed).overheads, counts > 0
        headers = torch.empty(int(overheads.sum()), dtype=torch.uint8)
        nothing = np.zeros(len(plan.tables), np.int64)
        fields = np.zeros_like(counts), counts, np.asarray(plan.layouts, np.int64)
        table = placed.codecs.numpy(), placed.num_rows.numpy(), nothing
        cpu.write_headers(headers.numpy(), *fields, self.call % 2**16, *table)
        gpu = importlib.import_module("trec_qcomm.wire.slot.gpu")
        largest = np.asarray(placed.frame_nbytes, np.int64)
        per_frame = (torch.from_numpy(v[full]) for v in (counts, largest, overheads, capacities))
        num_segments, most, header_nbytes, sizes = per_frame
        segments = gpu.Segments(self.payload, self._at, self.nbytes, num_segments, most)
        filled: Tensor = gpu.fill(segments, headers, header_nbytes, sizes, self.call % 2**16)
        return filled

    def frame_nbytes(self, nbytes: Tensor) -> list[int]:
        """Return P ints, the sizes of the frames. Args: nbytes: [S] int64 on CPU."""
        _, sizes = frame.lay_out(nbytes, self.placed.plan.segments_per_frame)
        return sizes

    def overflows(self, nbytes: Tensor, capacities: Any) -> list[Tensor]:
        """Return for each frame what its slot has no room for, as [n] uint8 on the device.

        Args: nbytes: [S] int64 on CPU.  capacities: [P] numpy int64, with room for headers.
        """
        counts = self.placed.plan.segments_per_frame
        at, sizes = frame.lay_out(nbytes, counts)
        lengths = np.maximum(np.asarray(sizes, np.int64) - slot.room(capacities), 0)
        out = self.payload.new_empty(int(lengths.sum()))
        if len(out):
            ends = np.asarray(sizes, np.int64).cumsum()
            frame_of = np.repeat(np.arange(len(counts)), counts)
            # What lies behind each segment's first bytes, which its frame's slot has.
            cut = (ends - np.asarray(sizes) + slot.room(capacities))[frame_of]
            lost = torch.from_numpy(np.clip(at.numpy() + nbytes.numpy() - cut, 0, nbytes.numpy()))
            target = torch.cumsum(lost, 0) - lost
            source = self._at + nbytes - lost
            importlib.import_module("trec_qcomm.wire.gpu").compact(
                self.payload, source, target, lost, out
            )
        return list(torch.split(out, lengths.tolist()))


def _joined_on_device(
    placed: PlacedFrames, sizes: Sequence[Tensor], device: torch.device
) -> Tensor:
    """Return [S] int64 on the device, the sizes of all groups. Args: sizes: [G] each, anywhere."""
    if all(size.device.type == "cpu" != device.type for size in sizes):
        (nbytes,) = upload(device, joined(placed.groups, sizes))
        return nbytes
    on_device = [upload(device, s)[0] if s.device.type == "cpu" else s for s in sizes]
    if len(placed.groups) == 1 and placed.groups[0].has_all:
        return on_device[0]
    (members,) = upload(device, torch.cat([group.members for group in placed.groups]))
    every = torch.cat(on_device)
    return torch.empty_like(every).index_copy_(0, members, every)
