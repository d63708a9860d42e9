"""Transport: rounds of messages on a process group, one collective after the other.

`Transport` is for messages on CPU. Its thread is what makes an all-reduce of many rounds
asynchronous: gloo has no such operation, and the caller (the autograd thread of DDP) must not wait.
Give it a process group of its own: ranks pair up messages by the order of calls on a group.

`DeviceTransport` is for those in a GPU's memory. All rounds are launched at once, on a stream that
waits for what arrives as the host does not, so it has no thread, and no group of its own: NCCL
wants several groups not to be used at the same time. Not run on a GPU so far; written by torch's
documentation (batch_isend_irecv, Future.set_result, new_group).

Knows: process groups, rounds, streams, futures. Does not know: what the messages hold.
"""

import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from trec_qcomm.comm.rounds import Arrived, Round, Rounds
from trec_qcomm.comm.streams import side_stream
from trec_qcomm.core.checks import Checks, deferring


def run_round(pg: dist.ProcessGroup, wanted: Round) -> Arrived:
    """Send and receive what a round asks for; blocks until all of it is done.

    Raises: CorruptFrameError: a size that no sender has reason to announce.  RuntimeError: a peer
        is lost or the group's timeout is over.
    """
    sizes = _exchanged_sizes(pg, wanted) if wanted.nbytes is None else list(wanted.nbytes)
    buffer = torch.empty(sum(sizes), dtype=torch.uint8)
    arrived = Arrived(buffer, sizes)
    works = [_send(pg, message, peer) for peer, message in wanted.sends if message.numel()]
    for part, source in zip(arrived.parts(), wanted.sources, strict=True):
        if part.numel():
            works.append(_receive(pg, part, source))
    for work in works:
        work.wait()
    return arrived


def _exchanged_sizes(pg: dist.ProcessGroup, wanted: Round) -> list[int]:
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in wanted.sources]
    # Kept until they are sent: the operations do not hold their tensors.
    own = [(peer, torch.tensor([m.numel()])) for peer, m in wanted.sends if m.numel()]
    works = [_send(pg, size, peer) for peer, size in own]
    for size, source, most in zip(sizes, wanted.sources, wanted.most, strict=True):
        if most:
            works.append(_receive(pg, size, source))
    for work in works:
        work.wait()
    found = [int(size) for size in sizes]
    wanted.check_sizes(found)
    return found


def _send(pg: dist.ProcessGroup, message: Tensor, peer: int) -> dist.Work:
    return pg.send([message], peer, 0)


def _receive(pg: dist.ProcessGroup, out: Tensor, peer: int) -> dist.Work:
    return pg.recv([out], peer, 0)


class Transport:
    """Runs collectives in the order in which they are started, the same on all ranks."""

    def __init__(self, pg: dist.ProcessGroup) -> None:
        """Args: pg: of CPU tensors, and of nobody else's."""
        self.pg = pg
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._broken: Exception | None = None

    def start(
        self, rounds: Rounds, result: Tensor, on_wire_s: Callable[[float], None]
    ) -> Future[Tensor]:
        """Run the generator behind those before it.

        Args:    on_wire_s: told the seconds of each round.
        Returns: a future of `result`, or of a RuntimeError whose text names what went wrong, such
                 as a CorruptFrameError. After an error nothing runs any more, as ranks would pair
                 up the wrong messages.
        """
        outcome: Future[Tensor | Exception] = Future()
        # Not set_exception: DDP takes the future of C++, where that is a value like any other.
        future = outcome.then(_result_or_error)

        def job() -> None:
            try:
                if self._broken is not None:
                    raise RuntimeError(f"an all-reduce before this one failed: {self._broken}")
                _drive(rounds, partial(run_round, self.pg), on_wire_s)
            except Exception as error:
                self._broken = self._broken or error
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
        """Finish what was started, end the thread. It also ends when nobody holds this object."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None


class DeviceTransport:
    """Launches collectives in the order in which they are started, the same on all ranks."""

    def __init__(self, pg: dist.ProcessGroup, device: torch.device, checks: Checks) -> None:
        """Collective. Args: pg: whatever else all ranks launch in it they launch in one order.
        checks: collects what is found wrong in frames.
        """
        self.pg, self._device, self._checks = pg, device, checks
        self._broken: Exception | None = None
        # NCCL connects all ranks in the first call of a group, and a round may be of some of them.
        dist.all_reduce(torch.zeros(1, device=device), group=pg)

    def start(
        self, rounds: Rounds, result: Tensor, on_wire_s: Callable[[float], None]
    ) -> Future[Tensor]:
        """Launch the generator, which reads and writes `result`, behind those before it.

        Args:    on_wire_s: told the seconds that launching each round took.
        Returns: a future of `result`, whose `wait` makes the current stream wait.
        Raises:  CorruptFrameError: also of frames of earlier collectives.  RuntimeError. After an
                 error nothing is launched any more. Where a peer is lost, torch's watchdog of NCCL
                 ends the process once the group's timeout is over.
        """
        try:
            if self._broken is not None:
                raise RuntimeError(f"an all-reduce before this one failed: {self._broken}")
            self._checks.raise_found()
            with side_stream(self._device, result, use="gradients"), deferring(self._checks):
                _drive(rounds, self._launch, on_wire_s)
                future: Future[Tensor] = Future(devices=[self._device] if result.is_cuda else None)
                future.set_result(result)  # here, as it notes the stream to wait for
        except Exception as error:
            self._broken = self._broken or error
            raise
        return future

    def _launch(self, wanted: Round) -> Arrived:
        assert wanted.nbytes is not None, "codecs of fixed size only"
        size = sum(wanted.nbytes)
        arrived = Arrived(
            torch.empty(size, dtype=torch.uint8, device=self._device), list(wanted.nbytes)
        )
        sends = [self._op(dist.isend, message, peer) for peer, message in wanted.sends]
        parts = zip(arrived.parts(), wanted.sources, strict=True)
        ops = sends + [self._op(dist.irecv, part, source) for part, source in parts]
        ops = [op for op in ops if op.tensor.numel()]
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()  # with NCCL the current stream waits, with gloo the host
        return arrived

    def _op(self, kind: Callable[..., object], message: Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(kind, message, group=self.pg, group_peer=peer)


def _result_or_error(outcome: "Future[Tensor | Exception]") -> Tensor:
    found = outcome.value()
    if isinstance(found, Exception):
        raise found
    return found


def _drive(
    rounds: Rounds, run: Callable[[Round], Arrived], on_wire_s: Callable[[float], None]
) -> None:
    try:
        wanted = next(rounds)
        while True:
            begin = perf_counter()
            arrived = run(wanted)
            on_wire_s(perf_counter() - begin)
            wanted = rounds.send(arrived)
    except StopIteration:
        return


def _work(jobs: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it holds the transport
