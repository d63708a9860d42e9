"""Transport: run rounds of messages on a process group, one collective after the other.

`Transport` is for messages on CPU. Its thread makes an all-reduce of many rounds asynchronous: gloo
has no such operation, and the caller (the autograd thread of DDP) must not wait. Give it a process
group of its own, because ranks pair up messages by the order of calls on a group.

`DeviceTransport` is for messages in a GPU's memory. It launches all rounds at once, on a stream
that waits for the messages, so that the host does not wait. It has no thread, and mostly shares its
group with the rows, because NCCL allows several groups at the same time only where all ranks launch
their kernels in one order (`own_group`). It was written by torch's documentation
(batch_isend_irecv, all_to_all_single, all_gather_into_tensor, Future.set_result, new_group), and
not run on a GPU so far.

Knows: process groups, rounds, streams, futures. Does not know: what the messages hold.
"""

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.futures import Future

from trec_qcomm.comm.peers import Peers
from trec_qcomm.comm.rounds import ReceivedMessages, Round, Rounds
from trec_qcomm.comm.streams import side_stream
from trec_qcomm.core.checks import DeferredChecks, deferring

_MOST_PADDED = 1.5  # bytes of an all-gather over those of its messages; they are padded


def run_round(peers: Peers, wanted: Round, name: str) -> ReceivedMessages:
    """Send and receive the messages of a round, and block until all are done.

    Args: name: words for the collective, for errors.
    Raises: CorruptFrameError: a size that `Round.checked_sizes` refuses.  LostPeerError: a peer is
        gone.
    """
    sizes = _exchanged_sizes(peers, wanted, name) if wanted.nbytes is None else list(wanted.nbytes)
    buffer = torch.empty(sum(sizes), dtype=torch.uint8)
    received = ReceivedMessages(buffer, sizes)
    sends = [(peer, message) for peer, message in wanted.sends if message.numel()]
    receives = [
        (source, message)
        for source, message in zip(wanted.sources, received.messages(), strict=True)
        if message.numel()
    ]
    _exchange(peers, sends, receives, name)
    return received


def _exchanged_sizes(peers: Peers, wanted: Round, name: str) -> list[int]:
    received = [torch.zeros(1, dtype=torch.int64) for _ in wanted.sources]
    sends = [(peer, torch.tensor([m.numel()])) for peer, m in wanted.sends if m.numel()]
    expected = zip(wanted.sources, received, wanted.max_nbytes, strict=True)
    receives = [(source, size) for source, size, limit in expected if limit]
    _exchange(peers, sends, receives, f"sizes of the {name}")
    return wanted.checked_sizes([int(size) for size in received], peers.ranks)


def _exchange(
    peers: Peers,
    sends: Sequence[tuple[int, Tensor]],
    receives: Sequence[tuple[int, Tensor]],
    name: str,
) -> None:
    """Send and receive messages, and block until all of it is done.

    Args: sends, receives: pairs of a rank and a message. The caller's lists keep the messages until
        they are sent: torch's operations do not.
    """
    pg, begin, waited_for = peers.pg, perf_counter(), None
    try:
        works = [(peer, pg.send([message], peer, 0)) for peer, message in sends]
        works += [(peer, pg.recv([message], peer, 0)) for peer, message in receives]
        for peer, work in works:
            waited_for = peer
            work.wait()
    except RuntimeError as error:
        raise peers.lost(error, name, since=begin, peer=waited_for) from error


class Transport:
    """Runner of collectives on CPU, one after the other, in the same order on all ranks."""

    def __init__(self, pg: dist.ProcessGroup) -> None:
        """Prepare without communication.

        Args: pg: a process group for CPU tensors that nobody else uses.
        """
        self._peers = Peers(pg)
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._broken: str | None = None

    def start(
        self,
        rounds: Rounds,
        result: Tensor,
        on_wire_s: Callable[[float], None],
        name: str = "all-reduce",
    ) -> Future[Tensor]:
        """Run the rounds of a collective after the rounds of earlier calls.

        Args:    rounds: the collective, which writes `result`.
                 on_wire_s: function that is called with the seconds of each round.
                 name: words for the collective, for errors.
        Returns: a future of `result`, or of a RuntimeError whose text names what went wrong, such
                 as a CorruptFrameError or a LostPeerError. After an error no collective runs any
                 more, because ranks would pair up the wrong messages.
        """
        outcome: Future[Tensor | Exception] = Future()
        # Not set_exception: DDP reads the future in C++, where an exception is just a value.
        future = outcome.then(result_or_error)

        def job() -> None:
            try:
                if self._broken is not None:
                    raise RuntimeError(f"an all-reduce before this one failed: {self._broken}")
                drive(rounds, partial(run_round, self._peers, name=name), on_wire_s)
            except Exception as error:
                self._broken = self._broken or f"{error}; restart all ranks from a checkpoint"
                outcome.set_result(error)
            else:
                outcome.set_result(result)

        if self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(self._jobs,), name="all-reduce", daemon=True
            )
            self._thread.start()
            weakref.finalize(self, self._jobs.put, None)
        self._jobs.put(job)
        return future

    def close(self) -> None:
        """Finish what was started and end the thread, which also ends with this object."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None


class DeviceTransport:
    """Runner of collectives on a GPU, one after the other, in the same order on all ranks."""

    def __init__(self, pg: dist.ProcessGroup, device: torch.device, checks: DeferredChecks) -> None:
        """Connect the ranks. All ranks call it together.

        Args:
            pg: the ranks. They must launch all their operations on it in the same order.
            device: the GPU.
            checks: collector of the errors in frames.
        """
        self.pg, self._device, self._checks = pg, device, checks
        self._broken: str | None = None
        self._rank = dist.get_rank(pg)
        self._others = [r for r in range(dist.get_world_size(pg)) if r != self._rank]
        # NCCL connects all ranks in the first call on a group; a round may need only some of them.
        dist.all_reduce(torch.zeros(1, device=device), group=pg)

    def start(
        self,
        rounds: Rounds,
        result: Tensor,
        on_wire_s: Callable[[float], None],
        name: str = "all-reduce",
    ) -> Future[Tensor]:
        """Launch the rounds of a collective after the rounds of earlier calls.

        Args:    rounds: the collective, which reads and writes `result`.
                 on_wire_s: function that is called with the seconds that launching a round took.
                 name: words for the collective; not used, because nothing here waits for a peer.
        Returns: a future of `result`, whose `wait` makes the current stream wait.
        Raises:  CorruptFrameError: a bad frame, of this collective or an earlier one.
                 RuntimeError: an earlier collective failed; nothing is launched any more.
                 If a peer is lost, torch's watchdog of NCCL ends the process once the group's
                 timeout is over.
        """
        try:
            if self._broken is not None:
                raise RuntimeError(f"an all-reduce before this one failed: {self._broken}")
            self._checks.raise_found()
            with side_stream(self._device, result, use="gradients"), deferring(self._checks):
                drive(rounds, self._launch, on_wire_s)
                future: Future[Tensor] = Future(devices=[self._device] if result.is_cuda else None)
                future.set_result(result)  # within side_stream: it notes the stream to wait for
        except Exception as error:
            self._broken = self._broken or f"{error}; restart all ranks from a checkpoint"
            raise
        return future

    def _launch(self, wanted: Round) -> ReceivedMessages:
        assert wanted.nbytes is not None, "codecs of fixed size only"
        # In every algorithm, all ranks have such a round or none has.
        peers = [peer for peer, _ in wanted.sends]
        if len(peers) > 1 and peers == self._others == list(wanted.sources):
            messages = [message for _, message in wanted.sends]
            due, sizes = list(wanted.nbytes), [messages[0].numel(), *wanted.nbytes]
            is_shared = all(m is messages[0] for m in messages)
            is_even = len(sizes) * max(sizes) <= _MOST_PADDED * sum(sizes)
            buffer = (self._gathered if is_shared and is_even else self._exchanged)(messages, due)
            return ReceivedMessages(buffer, due)
        buffer = torch.empty(sum(wanted.nbytes), dtype=torch.uint8, device=self._device)
        received = ReceivedMessages(buffer, list(wanted.nbytes))
        sends = [self._op(dist.isend, message, peer) for peer, message in wanted.sends]
        pairs = zip(received.messages(), wanted.sources, strict=True)
        ops = sends + [self._op(dist.irecv, message, source) for message, source in pairs]
        ops = [op for op in ops if op.tensor.numel()]
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()  # with NCCL the current stream waits, with gloo the host
        return received

    def _exchanged(self, messages: list[Tensor], due: Sequence[int]) -> Tensor:
        """Send each other rank its message, and return those that come, one after the other."""
        buffer, rank = messages[0].new_empty(sum(due)), self._rank
        sent = [message.numel() for message in messages]
        dist.all_to_all_single(
            buffer,
            torch.cat(messages),
            output_split_sizes=[*due[:rank], 0, *due[rank:]],
            input_split_sizes=[*sent[:rank], 0, *sent[rank:]],
            group=self.pg,
        )
        return buffer

    def _gathered(self, messages: list[Tensor], due: Sequence[int]) -> Tensor:
        """Send all other ranks the one message, and return those that come, one after the other.

        NCCL has no all-gather of unequal sizes in one call, so each is as large as the largest.
        """
        sent = messages[0]
        largest = max(sent.numel(), *due)
        whole = sent.new_empty((len(due) + 1) * largest)
        padded = sent if sent.numel() == largest else F.pad(sent, (0, largest - sent.numel()))
        dist.all_gather_into_tensor(whole, padded, group=self.pg)
        begins = [peer * largest for peer in self._others]
        return torch.cat([whole[at : at + n] for at, n in zip(begins, due, strict=True)])

    def _op(self, kind: Callable[..., object], message: Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(kind, message, group=self.pg, group_peer=peer)


def result_or_error(outcome: "Future[Tensor | Exception]") -> Tensor:
    """Return the tensor of a future, or raise the exception that is its value."""
    result = outcome.value()
    if isinstance(result, Exception):
        raise result
    return result


def drive(
    rounds: Rounds, run: Callable[[Round], ReceivedMessages], on_wire_s: Callable[[float], None]
) -> None:
    """Run each round of a collective.

    Args: run: function that sends and receives.  on_wire_s: function that is called with the
        seconds of each round.
    """
    try:
        wanted = next(rounds)
        while True:
            begin = perf_counter()
            received = run(wanted)
            on_wire_s(perf_counter() - begin)
            wanted = rounds.send(received)
    except StopIteration:
        return


def _work(jobs: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # while this thread waits, it would keep the transport from being freed
