"""A fake NCCL over gloo: collectives that are over late, checked for what NCCL asks of its callers.

NCCL runs the collectives of a communicator one after the other, some time after they were called;
until a collective is over, what it receives is not there and what it sends must stay. Here a thread
takes them from a queue, after a delay. Received bytes are 0xFF until then. It refuses
- pieces of a buffer that begin at no multiple of ALIGNMENT bytes, which NCCL copies byte by byte,
- collectives that differ from the other ranks', in kind, order or size, at which NCCL hangs.
"""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

ALIGNMENT = 128
KINDS = ("all-to-all", "sends and receives")


class FakeWork:
    """What takes the place of a torch.distributed.Work of NCCL."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.error: Exception | None = None

    def wait(self) -> None:
        assert self.over.wait(timeout=100), "a peer is not there"
        if self.error is not None:
            raise self.error


class FakeNccl:
    """Communicator of all ranks."""

    def __init__(self, delay_s: float) -> None:
        self._group, self._delay_s = dist.new_group(backend="gloo"), delay_s
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(timeout=100)

    def launch(
        self, kind: str, sends: list[tuple[int, Tensor]], receives: list[tuple[int, Tensor]]
    ) -> FakeWork:
        """Enqueue a collective. Args: sends, receives: pairs of a rank and a tensor."""
        for _, tensor in (*sends, *receives):
            at = tensor.storage_offset() * tensor.element_size()
            assert at % ALIGNMENT == 0, f"{kind}: a piece at byte {at}, no multiple of {ALIGNMENT}"
        for _, tensor in receives:
            tensor.view(torch.uint8).fill_(0xFF)
        work = FakeWork()
        self._jobs.put((work, kind, sends, receives))
        return work

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, *collective = job
            try:
                time.sleep(self._delay_s)
                self._execute(*collective)
            except Exception as error:
                work.error = error
            work.over.set()

    def _execute(self, kind, sends, receives) -> None:
        rank, size = dist.get_rank(self._group), dist.get_world_size(self._group)
        wanted = torch.zeros(1 + 2 * size, dtype=torch.int64)
        wanted[0] = KINDS.index(kind)
        for first, pieces in ((1, sends), (1 + size, receives)):
            for peer, tensor in pieces:
                wanted[first + peer] += tensor.numel() * tensor.element_size()
        every = [torch.empty_like(wanted) for _ in range(size)]
        dist.all_gather(every, wanted, group=self._group)
        matrix = torch.stack(every)
        sent, received = matrix[:, 1 : 1 + size], matrix[:, 1 + size :]
        same = bool((matrix[:, 0] == wanted[0]).all()) and torch.equal(sent, received.T)
        assert same, f"rank {rank}: {kind} of other sizes or in another order than the peers'"
        arrived = [(peer, tensor, torch.empty_like(tensor)) for peer, tensor in receives]
        works = [dist.isend(t, group=self._group, group_dst=p) for p, t in sends if p != rank]
        works += [
            dist.irecv(new, group=self._group, group_src=p) for p, _, new in arrived if p != rank
        ]
        for work in works:
            work.wait()
        to_itself = [tensor for peer, tensor in sends if peer == rank]
        for peer, tensor, new in arrived:
            tensor.copy_(to_itself.pop(0) if peer == rank else new)


def _pieces(tensor: Tensor, sizes: list[int] | None) -> list[tuple[int, Tensor]]:
    """Return what of a tensor is for each rank, as views; nothing for a rank of size 0."""
    size = dist.get_world_size()
    sizes = sizes or [len(tensor) // size] * size
    parts = enumerate(torch.split(tensor, sizes))
    return [(rank, part) for rank, part in parts if len(part)]


@contextmanager
def fake_nccl(delay_s: float = 0.002) -> Iterator[None]:
    """Let the default group be one of NCCL's inside the `with` block. Collective."""
    nccl, real = FakeNccl(delay_s), dist.all_to_all_single

    def all_to_all(
        out, given, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False
    ):
        if group is not dist.group.WORLD:  # a group of the host's
            return real(out, given, output_split_sizes, input_split_sizes, group, async_op)
        sends, receives = _pieces(given, input_split_sizes), _pieces(out, output_split_sizes)
        work = nccl.launch("all-to-all", sends, receives)
        return work if async_op else work.wait()

    def batch(operations):
        pairs = [(o.op is dist.isend, (o.group_peer, o.tensor)) for o in operations]
        sends, receives = ([pair for sent, pair in pairs if sent is s] for s in (True, False))
        return [nccl.launch("sends and receives", sends, receives)]

    try:
        with (
            mock.patch.object(dist, "all_to_all_single", all_to_all),
            mock.patch.object(dist, "batch_isend_irecv", batch),
            mock.patch.object(dist, "get_backend_config", return_value="cpu:gloo,cuda:nccl"),
        ):
            yield
    finally:
        nccl.close()
