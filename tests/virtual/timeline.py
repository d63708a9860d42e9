"""What happens before what on a GPU's streams: vector clocks, and the faults that they show.

Each stream runs its work in order, beside the other streams. A stream is behind another one's work
where it waited for an event recorded after that work, or where the host did so before the launch.
Two uses of memory of which one writes must be one behind the other. Memory that is freed goes back
to the stream that allocated it: all uses by other streams must be over for that stream, or the
streams must be recorded (Tensor.record_stream), so that the allocator waits for them.

Knows: streams, blocks of memory. Does not know: tensors, torch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

Clock = dict["Stream", int]  # for each stream, how much of its work is over


def join(clock: Clock, other: Clock) -> None:
    """Advance a clock to where both have been."""
    for stream, count in other.items():
        clock[stream] = max(count, clock.get(stream, 0))


@dataclass(eq=False)
class Stream:
    """Stream of a GPU, or the inner one of a communicator.

    Args:
        name: the stream, in words, for faults
        clock: the work that is over when its next work begins; its own counts what was launched
    """

    name: str
    clock: Clock = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Use:
    """Use of a block by one launch. number: that of the launch on its stream."""

    stream: Stream
    number: int
    name: str

    def is_over(self, clock: Clock) -> bool:
        return clock.get(self.stream, 0) >= self.number

    def __str__(self) -> str:
        return f"{self.name} on {self.stream.name}"


@dataclass(eq=False)
class Block:
    """Memory of one allocation.

    Args:
        owner: the stream on which it was allocated
        written: the last use that wrote it
        read: for each stream, its last use since then
        used: for each stream, its last use
        recorded: the streams for which the allocator waits
    """

    owner: Stream
    written: Use | None = None
    read: dict[Stream, Use] = field(default_factory=dict)
    used: dict[Stream, Use] = field(default_factory=dict)
    recorded: set[Stream] = field(default_factory=set)


class Timeline:
    """Work launched so far, and the faults found in it."""

    def __init__(self) -> None:
        self.host: Clock = {}  # the work that the host has seen the end of
        self.faults: list[str] = []

    def launch(
        self, stream: Stream, name: str, *, reads: Iterable[Block], writes: Iterable[Block]
    ) -> None:
        """Add work to a stream; note a fault where it runs beside what it must be behind."""
        join(stream.clock, self.host)
        number = stream.clock.get(stream, 0) + 1
        use = Use(stream, number, name)
        writes = list(dict.fromkeys(writes))
        for block in dict.fromkeys(reads):
            if block not in writes:
                self._check(use, block.written, "reads what {} may still write")
                block.read[stream] = use
                block.used[stream] = use
        for block in writes:
            self._check(use, block.written, "writes what {} may still write")
            for read in block.read.values():
                self._check(use, read, "writes what {} may still read")
            block.written = use
            block.read.clear()
            block.used[stream] = use
        stream.clock[stream] = number

    def _check(self, use: Use, earlier: Use | None, what: str) -> None:
        if earlier is not None and not earlier.is_over(use.stream.clock):
            self.faults.append(f"{use} {what.format(earlier)}")

    def event(self, stream: Stream) -> Clock:
        """Return an event that is over when the stream's work so far is."""
        return {**stream.clock}

    def wait(self, stream: Stream, event: Clock) -> None:
        """Let a stream wait for an event."""
        join(stream.clock, event)

    def wait_on_host(self, event: Clock) -> None:
        """Let the host wait for an event."""
        join(self.host, event)

    def free(self, block: Block) -> None:
        """Give a block back to its stream; note a fault where another may still use it."""
        over = {**block.owner.clock}
        join(over, self.host)
        for stream, use in block.used.items():
            if stream is not block.owner and stream not in block.recorded and not use.is_over(over):
                self.faults.append(f"freed to {block.owner.name} while {use} may still use it")
