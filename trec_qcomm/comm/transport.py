"""Transport: rounds of messages on a process group, one collective after the other in a thread.

Knows: process groups, rounds, futures. Does not know: what the messages hold.
The thread is what makes an all-reduce of many rounds asynchronous: gloo has no such operation, and
the caller (the autograd thread of DDP) must not wait. Give it a process group of its own: ranks
pair up messages by the order of calls on a group.
"""

import queue
import threading
import weakref
from collections.abc import Callable
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from trec_qcomm.comm.rounds import Arrived, Round, Rounds


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
        Returns: a future of `result`, or of what went wrong: CorruptFrameError, RuntimeError. After
                 an error nothing runs any more, as ranks would pair up the wrong messages.
        """
        future: Future[Tensor] = Future()

        def job() -> None:
            try:
                if self._broken is not None:
                    raise RuntimeError(f"an all-reduce before this one failed: {self._broken}")
                self._drive(rounds, on_wire_s)
            except Exception as error:
                self._broken = self._broken or error
                future.set_exception(error)  # type: ignore[arg-type]
            else:
                future.set_result(result)

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

    def _drive(self, rounds: Rounds, on_wire_s: Callable[[float], None]) -> None:
        try:
            wanted = next(rounds)
            while True:
                begin = perf_counter()
                arrived = run_round(self.pg, wanted)
                on_wire_s(perf_counter() - begin)
                wanted = rounds.send(arrived)
        except StopIteration:
            return


def _work(jobs: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it holds the transport
