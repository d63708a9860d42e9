"""MessageCoder: what one rank encodes and decodes in one all-reduce, with its residuals and noise.

Knows: codecs, frames, residuals, tolerances. Does not know: which algorithm, process groups.
Shapes: N ranks; E values of a bucket of P parameters.
"""

import hashlib
from collections.abc import Generator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import BucketChunks, ChunkSpan
from trec_qcomm.comm.dense.error_feedback import BucketResiduals, LostValues
from trec_qcomm.comm.dense.hooks import GradientMeasurement
from trec_qcomm.comm.dense.messages import Message, Sent
from trec_qcomm.comm.frames.coding import SealedFrames, encode_frames
from trec_qcomm.comm.frames.decoding import decode_frames, decode_own
from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.frames.sums import decode_sum
from trec_qcomm.comm.rounds import SIZE_NBYTES, ReceivedMessages, Round
from trec_qcomm.comm.sizes import largest_nbytes
from trec_qcomm.comm.slots.extents import Extents
from trec_qcomm.comm.slots.messages import RoundHistories, SlotRound
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.devices import is_gpu
from trec_qcomm.core.segments import ALIGNMENT
from trec_qcomm.wire import frame, slot

_CPU = torch.device("cpu")
Exchange = Generator[Round, ReceivedMessages, ReceivedMessages]


class GradientTolerances(Protocol):
    """Rule that sets the tolerances of the codec, such as thresholds, before values are encoded.

    Rows have a rule of another shape, comm.rows.hooks.RowTolerances: a table has one tolerance
    a step, a parameter has one for each place of the algorithm that encodes.
    """

    def tolerances(
        self, values: Tensor, chunks: BucketChunks, span: ChunkSpan, site: str, *, step: int
    ) -> Tensor:
        """Return [P] float64, the codec's tolerance for each parameter.

        Args:
            values: [E] float32, the bucket with what is about to be sent.
            chunks: the chunks of `values`.
            span: the part of `values` that is sent.
            site: the place of the algorithm that encodes, see error_feedback.
            step: number of the step, the same on all ranks.
        """
        ...


class Scratch:
    """Memory on CPU that the all-reduces of one rank use one after the other.

    The system clears each page of newly allocated megabytes, which takes longer than coding them.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def empty(self, use: str, numel: int, like: Tensor) -> Tensor:
        """Return [numel] values of any content; they are the caller's until it asks again.

        Args: use: name of the use, each of which has memory of its own.  like: a tensor of the
            same dtype and device. A GPU's memory is newly allocated, which is cheap.
        """
        if is_gpu(like.device):
            return like.new_empty(numel)
        buffer = self._buffers.get(use)
        if buffer is None or buffer.numel() < numel:
            buffer = self._buffers[use] = like.new_empty(numel)
        return buffer[:numel]


class MessageCoder:
    """Encoder and decoder of one rank's messages in one all-reduce of one bucket.

    Attributes:
        sent: counts of what its rounds send.
        traffic: counters of the largest errors, by parameter, if these are measured; bytes are not
            counted.
        scratch: memory for algorithms.
    """

    def __init__(
        self,
        chunks: BucketChunks,
        rank: int,
        *,
        call: int,
        step: int,
        seed: int,
        timed: Traffic,
        scratch: Scratch,
        alignment: int = ALIGNMENT,
        device: torch.device = _CPU,
        residuals: BucketResiduals | LostValues | None = None,
        tolerances: GradientTolerances | None = None,
        measure: bool = False,
        slots: RoundHistories | None = None,
        measurement: GradientMeasurement | None = None,
        hop: str = "",
    ) -> None:
        """Prepare for one all-reduce.

        Args:
            chunks: the chunks of the bucket.
            rank: this rank.
            call: number of the all-reduce, the same on all ranks.
            step: number of the step, which keys the noise and sets tolerances.
            seed: the config's seed of stochastic rounding.
            timed: counters that get the codecs' seconds.
            scratch: memory for algorithms.
            alignment: the result of wire.frame.alignment_of for the memory of the messages.
            device: where the messages lie.
            residuals: None without error feedback.
            tolerances: None where the codec's own tolerance holds.
            measure: whether to record the largest error, too.
            slots: histories of what the rounds send, where messages whose sizes vary travel in
                slots; None: their sizes travel first.
            measurement: onlooker of this all-reduce; None without one.
            hop: name of the hop, where an all-reduce has several coders, each with its rounds.
        """
        self.chunks, self.rank, self.world_size = chunks, rank, chunks.num_chunks
        self.scratch = scratch
        self.traffic = Traffic("dense", chunks.names if measure else ())
        self.traffic.encode_s, self.traffic.decode_s = timed.encode_s, timed.decode_s
        self.sent = Sent()
        self._slots, self._num_rounds, self._hop = slots, 0, hop
        self._call, self._step, self._seed, self._measure = call, step, seed, measure
        self._residuals, self._tolerances = residuals, tolerances
        self._alignment, self._device, self._measurement = alignment, device, measurement

    def send(
        self,
        values: Tensor,
        span: ChunkSpan,
        site: str,
        *,
        noise_group: int | None = None,
        decoded: bool = True,
    ) -> list[Message]:
        """Encode a span of `values` [E] with its residual, and replace it by what receivers decode.

        Args:    site: the place of the algorithm that encodes; residuals are kept by it.
                 noise_group: ranks of one group draw the same noise of stochastic rounding; None:
                 this rank draws its own.
                 decoded: whether the span is replaced also where no residual needs it.
        Returns: the frames of `span`.
        Raises:  UnencodableError: naming the parameter.
        """
        sent_values = values[span.begin : span.end]
        if self._residuals is not None:
            gradient = None if self._measurement is None else sent_values.clone()
            waiting = self._residuals.add(values, span, site)
            before = sent_values.clone()
        tolerances = None
        if self._tolerances is not None:
            tolerances = self._tolerances.tolerances(
                values, self.chunks, span, site, step=self._step
            )
        seed = self._noise_seed(site, self.rank if noise_group is None else noise_group)
        if self._measurement is not None:
            self._measurement.sent(values, span, site, seed=seed, tolerances=tolerances)
        frames = encode_frames(
            values,
            span.placed,
            call=self._call,
            seed=seed,
            traffic=self.traffic,
            measure=self._measure,
            counted=False,
            tolerances=tolerances,
        )
        counts = span.placed.plan.segments_per_frame
        if decoded or self._residuals is not None:
            decode_own(frames, span.placed, values, traffic=self.traffic)
        if self._residuals is not None:
            kept = self._residuals.note(before, sent_values, waiting, span, site)
            if self._measurement is not None and gradient is not None:
                self._measurement.kept(gradient, kept, span, site)
        assert frames.announced is not None
        payloads = frame.payload_nbytes(frames.announced.nbytes, counts)
        data = torch.split(frames.buffer, frames.nbytes)
        announced: Sequence[frame.Announced | None] = [None] * len(counts)
        if frame.is_on_gpu(values) and not span.placed.fixed_size:
            announced = frames.announced.by_frame(counts)
        return [
            Message(f, f.numel() - n, span.placed, number, known)
            for number, (f, n, known) in enumerate(zip(data, payloads, announced, strict=True))
        ]

    def exchange(
        self,
        sends: Sequence[tuple[int, Message]],
        sources: Sequence[int],
        expected: PlacedFrames | None,
        *,
        sent: Sent | None = None,
    ) -> Exchange:
        """Yield the rounds that send and receive these messages: one, unless slots overflow.

        Args: sends, sources, expected, sent: arguments of `round`.
        Returns: the messages from the sources.
        """
        number, self._num_rounds = self._num_rounds, self._num_rounds + 1
        if self._slots is None or self.chunks.fixed_size:
            received = yield self.round(sends, sources, expected, sent=sent)
            return received
        distinct = {id(message.frame): message for _, message in sends}
        numbers = {key: n for n, key in enumerate(distinct)}
        awaited = [] if expected is None else [(expected, n) for n in range(len(sources))]
        counts = {"sent": len(distinct), "received": len(awaited)}
        histories = [
            self._slots.history(self.chunks.names, number, self._hop + use, n)
            for use, n in counts.items()
        ]
        in_slots = SlotRound(
            sends=[(peer, numbers[id(message.frame)]) for peer, message in sends],
            messages=[message.frame for message in distinct.values()],
            nbytes=[message.nbytes for message in distinct.values()],
            outgoing=Extents.from_frames([(m.placed, m.number) for m in distinct.values()]),
            sources=sources,
            incoming=Extents.from_frames(awaited),
            expected=expected,
            device=self._device,
            histories=(histories[0], histories[1]),
            call=self._call,
        )
        received = yield from in_slots.run()
        sent = self.sent if sent is None else sent
        sent.nbytes += in_slots.sent_nbytes
        sent.padding_nbytes += in_slots.padding_nbytes
        sent.num_overflows += in_slots.num_overflows
        overheads = [m.overhead_nbytes + slot.HEADER_NBYTES for _, m in sends if m.frame.numel()]
        sent.header_nbytes += sum(overheads)
        return received

    def round(
        self,
        sends: Sequence[tuple[int, Message]],
        sources: Sequence[int],
        expected: PlacedFrames | None,
        *,
        sent: Sent | None = None,
    ) -> Round:
        """Return a round of these messages, and count its bytes.

        Args:
            sends: pairs of a rank and the message to it.
            sources: the ranks to wait for.
            expected: one frame from each source; None: nothing comes.
            sent: counts that get the bytes; None: this coder's.
        """
        sent = self.sent if sent is None else sent
        fixed_size = self.chunks.fixed_size
        nbytes = [] if expected is None else expected.layout(self._alignment).frame_nbytes
        max_nbytes = nbytes
        if expected is not None and not fixed_size:
            max_nbytes = largest_nbytes(expected).tolist()
        messages = [message for _, message in sends if message.frame.numel()]
        sizes_nbytes = 0 if fixed_size else SIZE_NBYTES * len(messages)
        sent.nbytes += sum(m.frame.numel() for m in messages) + sizes_nbytes
        sent.header_nbytes += sum(m.header_nbytes for m in messages) + sizes_nbytes
        return Round(
            sends=[(peer, message.frame) for peer, message in sends],
            sources=sources,
            nbytes=nbytes if fixed_size else None,
            max_nbytes=max_nbytes,
        )

    def receive(
        self,
        received: ReceivedMessages,
        expected: PlacedFrames,
        out: Tensor,
        sources: Sequence[int],
    ) -> None:
        """Decode the frames to their places in `out`.

        Raises: CorruptFrameError: naming the sender and the parameter. On a GPU it may be raised
            later, see core.checks.
        """
        frames = self._frames(received, expected)
        decode_frames(frames, expected, out, ranks=sources, traffic=self.traffic)

    def add_up(
        self,
        received: ReceivedMessages,
        expected: PlacedFrames,
        out: Tensor,
        sources: Sequence[int],
        place: int,
    ) -> None:
        """Add the frames' values to those of this rank, which `out` holds, in rank order.

        Args:
            expected: a frame of the same values from each source, see frames.sums.decode_sum.
            out: [n] values.
            sources: all other ranks that have a summand, in order.
            place: number of this rank among them.
        Raises: CorruptFrameError: that of `receive`.
        """
        decode_sum(
            self._frames(received, expected),
            expected,
            out,
            ranks=sources,
            traffic=self.traffic,
            held_at=place,
            memory=lambda numel: self.scratch.empty("summands", numel, out),
        )

    def _frames(self, received: ReceivedMessages, expected: PlacedFrames) -> SealedFrames:
        announced = None
        if frame.is_on_gpu(received.buffer):
            announced = getattr(received, "announced", expected.announced)
        return SealedFrames(received.buffer, received.nbytes, self._call, announced)

    @property
    def has_residuals(self) -> bool:
        """Whether what the codec keeps back is added to later values."""
        return self._residuals is not None

    def _noise_seed(self, site: str, noise_group: int) -> int:
        """Return 63 bits that differ by rank or group, place and step.

        Values that are encoded at one place in one step draw different noise by their numbers,
        which do not depend on the bucket. DDP changes its buckets after the first step, and so in
        another step of a run that is resumed.
        """
        key = repr((self._seed, self._step, site, noise_group))
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1
