"""Coder: what one rank encodes and decodes in one all-reduce, its residuals and noise included.

Knows: codecs, frames, residuals, thresholds. Does not know: which algorithm, process groups.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import Chunks, Part
from trec_qcomm.comm.dense.error_feedback import BucketResiduals
from trec_qcomm.comm.exchange import SealedFrames, decode_frames, encode_frames, largest_nbytes
from trec_qcomm.comm.frame_plan import PlacedFrames
from trec_qcomm.comm.rounds import SIZE_NBYTES, Arrived, Round
from trec_qcomm.core.counters import Traffic
from trec_qcomm.wire import frame


class Message(NamedTuple):
    """One frame. Args: frame: [W] uint8.  header_nbytes: of it, for statistics."""

    frame: Tensor
    header_nbytes: int

    @classmethod
    def of(cls, arrived: Tensor, placed: PlacedFrames) -> "Message":
        """A frame that is passed on as it arrived."""
        return cls(arrived, frame.overhead_nbytes(placed.plan.segments_per_frame[0]))


class GradientTolerances(Protocol):
    """Sets the tolerances of the codec, such as thresholds, by what is about to be sent."""

    def tolerances(self, values: Tensor, chunks: Chunks, part: Part, site: str) -> Tensor:
        """Return [P] float64, the codec's tolerance for each parameter."""
        ...


class Coder:
    """One all-reduce of one bucket on one rank.

    sent_nbytes, header_nbytes: what its rounds send, and how much of that is headers and sizes.
    """

    def __init__(
        self,
        chunks: Chunks,
        rank: int,
        *,
        call: int,
        seed: int,
        residuals: BucketResiduals | None = None,
        tolerances: GradientTolerances | None = None,
        measure: bool = False,
    ) -> None:
        """Args: call: number of the all-reduce, the same on all ranks.  seed: of the config.
        residuals: None without error feedback.  tolerances: None where the codec's own hold.
        measure: also record the largest error.
        """
        self.chunks, self.rank, self.world_size = chunks, rank, chunks.num_chunks
        self.traffic = Traffic("dense", chunks.names)  # seconds and errors; bytes are the rounds'
        self.sent_nbytes = self.header_nbytes = 0
        self._call, self._seed, self._measure = call, seed, measure
        self._residuals, self._tolerances = residuals, tolerances

    def send(
        self, values: Tensor, part: Part, site: str, *, drawn_by: int | None = None
    ) -> list[Message]:
        """Encode that part of `values` [E] with its residual, and put what receivers will decode
        in its place.

        Args:    site: which of the algorithm's places encodes here, names residuals.
                 drawn_by: who draws the noise of stochastic rounding, if not this rank alone.
        Returns: the frames of `part`.
        Raises:  UnencodableError: naming the parameter.
        """
        own = values[part.begin : part.end]
        if self._residuals is not None:
            waiting = self._residuals.add(values, part, site)
            before = own.clone()
        frames = encode_frames(
            values,
            part.placed,
            call=self._call,
            seed=self._noise_seed(site, self.rank if drawn_by is None else drawn_by, part),
            traffic=self.traffic,
            measure=self._measure,
            tolerances=self._tolerances_of(values, part, site),
        )
        decode_frames(frames, part.placed, values, ranks=self._own(part), traffic=self.traffic)
        if self._residuals is not None:
            self._residuals.note(before, own, waiting, part, site)
        counts = part.placed.plan.segments_per_frame
        parts = torch.split(frames.buffer, frames.nbytes)
        return [Message(f, frame.overhead_nbytes(n)) for f, n in zip(parts, counts, strict=True)]

    def round(
        self, sends: Sequence[tuple[int, Message]], sources: Sequence[int], due: PlacedFrames | None
    ) -> Round:
        """A round of these messages. Args: due: one frame of each source; None: nothing comes."""
        if due is None:
            nbytes, most = [], []
        else:
            nbytes, most = due.frame_nbytes, largest_nbytes(due).tolist()
        fixed_size = self.chunks.coding.codec.fixed_size
        messages = [message for _, message in sends if message.frame.numel()]
        sizes = 0 if fixed_size else SIZE_NBYTES * len(messages)
        self.sent_nbytes += sum(m.frame.numel() for m in messages) + sizes
        self.header_nbytes += sum(m.header_nbytes for m in messages) + sizes
        return Round(
            sends=[(peer, message.frame) for peer, message in sends],
            sources=sources,
            nbytes=nbytes if fixed_size else None,
            most=most,
        )

    def receive(
        self, arrived: Arrived, due: PlacedFrames, out: Tensor, sources: Sequence[int]
    ) -> None:
        """Decode the frames to their places in `out`.

        Raises: CorruptFrameError: naming the sender and the parameter; on a GPU when core.checks
            says.
        """
        announced = None
        if frame.is_on_gpu(arrived.buffer):
            announced = frame.Announced(due.codecs, due.most)
        frames = SealedFrames(arrived.buffer, arrived.nbytes, self._call, announced)
        decode_frames(frames, due, out, ranks=sources, traffic=self.traffic)

    def _own(self, part: Part) -> list[int]:
        return [self.rank] * len(part.placed.plan.segments_per_frame)

    def _tolerances_of(self, values: Tensor, part: Part, site: str) -> Tensor | None:
        if self._tolerances is None:
            return None
        return self._tolerances.tolerances(values, self.chunks, part, site)

    def _noise_seed(self, site: str, drawn_by: int, part: Part) -> int:
        """63 bits, another for each rank, place, bucket and step."""
        key = repr((self._seed, self._call, self.chunks.names, site, drawn_by, part.begin))
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1
