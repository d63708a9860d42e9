"""MessageCoder: encode and decode the messages of one rank in one all-reduce.

Knows: codecs, frames, residuals, tolerances. Does not know: which algorithm, process groups.
Shapes: N ranks; E values of a bucket of P parameters; W bytes of a frame.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from trec_qcomm.comm.dense.chunks import BucketChunks, ChunkSpan
from trec_qcomm.comm.dense.error_feedback import BucketResiduals, LostValues
from trec_qcomm.comm.frames.coding import SealedFrames, encode_frames
from trec_qcomm.comm.frames.decoding import decode_frames, decode_own
from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.frames.sums import decode_sum
from trec_qcomm.comm.rounds import SIZE_NBYTES, ReceivedMessages, Round
from trec_qcomm.comm.sizes import largest_nbytes
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.devices import is_gpu
from trec_qcomm.core.segments import ALIGNMENT
from trec_qcomm.wire import frame


class GradientTolerances(Protocol):
    """Rule that sets the codec's tolerances, such as thresholds, before values are encoded.

    Rows have another kind of rule, comm.rows.doors.Tolerances: a table has one tolerance a step, a
    parameter has one for each site of the algorithm.
    """

    def tolerances(
        self, values: Tensor, chunks: BucketChunks, span: ChunkSpan, site: str, *, step: int
    ) -> Tensor:
        """Return [P] float64, the codec's tolerance for each parameter.

        Args:
            values: [E] float32, the bucket with the values that are about to be sent.
            chunks: the chunks of `values`.
            span: the part of `values` that is sent.
            site: site of the algorithm that encodes (comm.dense.error_feedback).
            step: number of the step, the same on all ranks.
        """

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return what a checkpoint keeps of this rank, on CPU."""

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue from `state`, where parameters, sites and the number of ranks are the same."""


class GradientMeasurement(Protocol):
    """Observer of the all-reduce of one bucket. It must not write to any argument."""

    def sent(
        self, values: Tensor, span: ChunkSpan, site: str, *, seed: int, tolerances: Tensor | None
    ) -> None:
        """Look at values before they are encoded.

        Args:
            values: [E] float32, with the residual.
            span: the part that is sent.
            site: site of the algorithm that encodes (comm.dense.error_feedback).
            seed, tolerances: arguments of encode_frames, with which the values will be encoded.
        """

    def kept(self, gradient: Tensor, residual: Tensor, span: ChunkSpan, site: str) -> None:
        """Look at the codec's error, the new residual.

        Args:
            gradient: [numel of the span] float32, the values before the old residual was added.
            residual: [numel of the span] float32, which will be added to the next step's values.
            span, site: arguments of `sent`.
        """

    def end(self, values: Tensor) -> None:
        """Look at the mean over ranks. Args: values: [E] float32, in the order of the chunks."""


class GradientObserver(Protocol):
    """Observer of the all-reduces of one DDP."""

    def begin(self, chunks: BucketChunks, step: int) -> GradientMeasurement | None:
        """Return an observer of one bucket, or None if this step is not observed.

        Args: chunks: the bucket's chunks.  step: number of the step.
        """


class Scratch:
    """Memory on CPU that the all-reduces of one rank use one after the other.

    The system clears each page of newly allocated memory, which takes longer than coding its
    values.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def empty(self, use: str, numel: int, like: Tensor) -> Tensor:
        """Return [numel] values of any content, which are the caller's until the next call.

        Args: use: name of the use; each use has memory of its own.  like: tensor of the same dtype
            and device. On a GPU the memory is newly allocated, which is cheap.
        """
        if is_gpu(like.device):
            return like.new_empty(numel)
        buffer = self._buffers.get(use)
        if buffer is None or buffer.numel() < numel:
            buffer = self._buffers[use] = like.new_empty(numel)
        return buffer[:numel]


class Message(NamedTuple):
    """One frame to send.

    Args:
        frame: [W] uint8, with the padding after it.
        header_nbytes: how many of the W bytes are header and padding, for statistics.
    """

    frame: Tensor
    header_nbytes: int

    def to_itself(self) -> ReceivedMessages:
        """Return the message as its sender would receive it."""
        return ReceivedMessages(self.frame, [self.frame.numel()])


def messages_of(frames: ReceivedMessages, placed: PlacedFrames) -> list[Message]:
    """Return frames, in order, each as a message to send. Args: placed: rows of the frames."""
    counts = placed.plan.segments_per_frame
    if placed.fixed_size:
        pairs = zip(frames.nbytes, placed.payload_nbytes, strict=True)
        overheads = [size - n for size, n in pairs]
    else:  # in a CPU's memory, without padding
        overheads = [frame.overhead_nbytes(count) for count in counts]
    return [Message(*pair) for pair in zip(frames.messages(), overheads, strict=True)]


@dataclass
class Sent:
    """Counts of the bytes that the rounds of one hop send.

    Attributes: nbytes: all bytes.  header_nbytes: bytes of headers, padding and sizes among them.
    """

    nbytes: int = 0
    header_nbytes: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """Facts of one all-reduce that all its coders share.

    Args:
        rank: this rank's number in the group.
        ranks: global ranks of the group's ranks, for errors.
        number: number of the all-reduce, the same on all ranks.
        step: number of the step, which keys the noise and sets tolerances.
        seed: the config's seed of stochastic rounding.
        scratch: memory for algorithms.
        alignment: the result of wire.frame.alignment_of for the memory of the messages.
        measure: whether to record the largest error.
    """

    rank: int
    ranks: Sequence[int]
    number: int
    step: int
    seed: int
    scratch: Scratch
    alignment: int = ALIGNMENT
    measure: bool = False


class MessageCoder:
    """Encoder and decoder of one rank's messages in one all-reduce of one bucket.

    Attributes:
        sent: counts of the bytes that its rounds send.
        traffic: counters of the largest errors by parameter, if these are measured. They count no
            bytes.
        scratch: memory for algorithms.
        residuals: what keeps the codec's errors; None: nothing.
    """

    def __init__(
        self,
        chunks: BucketChunks,
        call: Call,
        *,
        timed: Traffic,
        residuals: BucketResiduals | LostValues | None = None,
        tolerances: GradientTolerances | None = None,
        measurement: GradientMeasurement | None = None,
    ) -> None:
        """Prepare for one all-reduce.

        Args:
            chunks: the chunks of the bucket.
            call: the all-reduce.
            timed: counters that get the codecs' seconds.
            residuals: None without error feedback.
            tolerances: None where the codec's own tolerance holds.
            measurement: observer of this all-reduce; None without one.
        """
        self.chunks, self.rank, self.world_size = chunks, call.rank, len(call.ranks)
        self.scratch, self.sent, self._call = call.scratch, Sent(), call
        self.traffic = Traffic("dense", chunks.names if call.measure else ())
        self.traffic.encode_s, self.traffic.decode_s = timed.encode_s, timed.decode_s
        self.residuals, self._tolerances = residuals, tolerances
        self._measurement = measurement

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

        Args:    site: site of the algorithm that encodes; each site has residuals of its own.
                 noise_group: number of the group whose ranks draw the same noise of stochastic
                 rounding. None: this rank draws its own.
                 decoded: whether the span is replaced also where no residual needs it.
        Returns: the frames of `span`.
        Raises:  UnencodableError: naming the parameter.
        """
        sent_values = values[span.begin : span.end]
        if self.residuals is not None:
            gradient = None if self._measurement is None else sent_values.clone()
            waiting = self.residuals.add(values, span, site)
            before = sent_values.clone()
        tolerances = None
        if self._tolerances is not None:
            tolerances = self._tolerances.tolerances(
                values, self.chunks, span, site, step=self._call.step
            )
        seed = self._noise_seed(site, self.rank if noise_group is None else noise_group)
        if self._measurement is not None:
            self._measurement.sent(values, span, site, seed=seed, tolerances=tolerances)
        frames = encode_frames(
            values,
            span.placed,
            call=self._call.number,
            seed=seed,
            traffic=self.traffic,
            measure=self._call.measure,
            counted=False,
            tolerances=tolerances,
        )
        if decoded or self.residuals is not None:
            decode_own(frames, span.placed, values, traffic=self.traffic)
        if self.residuals is not None:
            kept = self.residuals.note(before, sent_values, waiting, span, site)
            if self._measurement is not None and gradient is not None:
                self._measurement.kept(gradient, kept, span, site)
        return messages_of(ReceivedMessages(frames.buffer, frames.nbytes), span.placed)

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
            sources: ranks from which a message comes.
            expected: one frame from each source; None: no message comes.
            sent: counts that get the bytes; None: this coder's counts.
        """
        sent = self.sent if sent is None else sent
        fixed_size = self.chunks.fixed_size
        nbytes = [] if expected is None else expected.layout(self._call.alignment).frame_nbytes
        max_nbytes = nbytes
        if expected is not None and not fixed_size:
            max_nbytes = largest_nbytes(expected)
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
            later (core.checks).
        """
        frames = self._frames(received, expected)
        decode_frames(frames, expected, out, ranks=self._named(sources), traffic=self.traffic)

    def add_up(
        self,
        received: ReceivedMessages,
        expected: PlacedFrames,
        out: Tensor,
        sources: Sequence[int],
        place: int,
    ) -> None:
        """Add the frames' values, in rank order, to this rank's values in `out`.

        Args:
            expected: a frame of the same values from each source (frames.sums.decode_sum).
            out: [n] values.
            sources: all other ranks that have a summand, in order.
            place: index of this rank among all ranks that have a summand.
        Raises: CorruptFrameError: the same as `receive`.
        """
        decode_sum(
            self._frames(received, expected),
            expected,
            out,
            ranks=self._named(sources),
            traffic=self.traffic,
            held_at=place,
            memory=lambda numel: self.scratch.empty("summands", numel, out),
        )

    def _named(self, sources: Sequence[int]) -> list[int]:
        return [self._call.ranks[source] for source in sources]

    def _frames(self, received: ReceivedMessages, expected: PlacedFrames) -> SealedFrames:
        announced = expected.announced if frame.is_on_gpu(received.buffer) else None
        return SealedFrames(received.buffer, received.nbytes, self._call.number, announced)

    def _noise_seed(self, site: str, noise_group: int) -> int:
        """Return 63 bits that differ by rank or group, place and step.

        Values that are encoded at one place in one step draw different noise by their numbers,
        which do not depend on the bucket. DDP changes its buckets after the first step, and so in
        another step of a run that is resumed.
        """
        key = repr((self._call.seed, self._call.step, site, noise_group))
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1
