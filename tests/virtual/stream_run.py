"""Dry run with streams: which work on a GPU runs beside which, and what that may damage.

torch.cuda's streams and events, collectives and frees of memory go to a `Timeline`. A collective is
as NCCL's: it runs on a stream of its communicator, behind what the current stream has so far, and
behind the collectives before it. `wait` of its work makes the current stream wait. Until then the
work holds its tensors, and does not record a stream for them (TORCH_NCCL_AVOID_RECORD_STREAMS).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tests.virtual.dry_run import GPU, DryRun
from tests.virtual.dry_run import Event as HostEvent
from tests.virtual.timeline import Block, Clock, Stream, Timeline
from trec_qcomm.comm import streams, transport


class StreamRun(DryRun):
    """Dry run that finds what streams do to one another's memory; see `faults`."""

    def __init__(self) -> None:
        super().__init__()
        self.timeline = Timeline()
        self.main = VirtualStream(self, "main")
        self.communicator = VirtualStream(self, "communicator")
        self.current = self.main
        self._blocks: dict[int, tuple[StorageWeakRef, Block]] = {}

    @property
    def faults(self) -> list[str]:
        """What was found so far, also in what is free by now."""
        self.free_unused()
        return self.timeline.faults

    def patches(self) -> list[Any]:
        return [
            mock.patch.object(streams, "_stream", cache(lambda _, use: VirtualStream(self, use))),
            mock.patch.object(torch.cuda, "current_stream", self.current_stream),
            mock.patch.object(torch.cuda, "stream", self.on),
            mock.patch.object(Tensor, "record_stream", lambda *args: self.record(*args)),
            mock.patch.object(transport, "Future", partial(VirtualFuture, self)),
        ]

    def current_stream(self, _device: object = None) -> Stream:
        return self.current

    def block(self, tensor: Tensor) -> Block:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._blocks:
            self._blocks[storage._cdata] = StorageWeakRef(storage), Block(self.current)
        return self._blocks[storage._cdata][1]

    def free_unused(self) -> None:
        """Free the blocks that no tensor uses any more. Call it before a stream waits."""
        for key in [key for key, (storage, _) in self._blocks.items() if storage.expired()]:
            self.timeline.free(self._blocks.pop(key)[1])

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.free_unused()
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if isinstance(result, Tensor) and result.device == GPU:
            self.block(result)  # allocated on the current stream
        return result

    def ran(self, name: str, tensors: list[Tensor], written: list[Tensor]) -> None:
        self.launch_on(self.current, name, tensors, written)

    def launch_on(
        self, stream: Stream, name: str, tensors: list[Tensor], written: list[Tensor]
    ) -> None:
        self.free_unused()
        reads, writes = (map(self.block, blocks) for blocks in (tensors, written))
        self.timeline.launch(stream, name, reads=reads, writes=writes)

    def collective(self, name: str, sent: list[Tensor], received: list[Tensor]) -> Any:
        work = super().collective(name, sent, received)
        if all(tensor.device != GPU for tensor in (*sent, *received)):
            return work
        self.free_unused()
        self.communicator.wait_stream(self.current)
        self.launch_on(self.communicator, name, sent, received)
        return VirtualWork(self, [*sent, *received])

    def event(self) -> "VirtualEvent":
        return VirtualEvent(self)

    @contextmanager
    def on(self, stream: "VirtualStream") -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def record(self, tensor: Tensor, stream: Stream) -> None:
        self.free_unused()
        self.block(tensor).recorded.add(stream)


class VirtualStream(Stream):
    """What takes the place of a torch.cuda.Stream."""

    def __init__(self, run: StreamRun, name: str) -> None:
        super().__init__(name)
        self._run = run

    def wait_stream(self, other: Stream) -> None:
        self._run.free_unused()
        self._run.timeline.wait(self, self._run.timeline.event(other))


class VirtualEvent(HostEvent):
    """What takes the place of a torch.cuda.Event, recorded where it is made."""

    def __init__(self, run: StreamRun) -> None:
        super().__init__(run)
        self._clock = run.timeline.event(run.current)

    def query(self) -> bool:
        self._run.timeline.wait_on_host(self._clock)
        return super().query()

    def synchronize(self) -> None:
        super().synchronize()
        self._run.timeline.wait_on_host(self._clock)


class VirtualWork:
    """What takes the place of NCCL's torch.distributed.Work."""

    def __init__(self, run: StreamRun, tensors: list[Tensor]) -> None:
        self._run, self._held = run, tensors
        self._clock: Clock = run.timeline.event(run.communicator)

    def wait(self) -> None:
        self._run.free_unused()
        self._run.timeline.wait(self._run.current, self._clock)
        self._held.clear()


class VirtualFuture:
    """What takes the place of a torch.futures.Future of a result on a GPU."""

    def __init__(self, run: StreamRun, devices: object = None) -> None:
        self._run = run

    def set_result(self, result: Tensor) -> None:
        self._result, self._clock = result, self._run.timeline.event(self._run.current)

    def wait(self) -> Tensor:
        self._run.free_unused()
        self._run.timeline.wait(self._run.current, self._clock)
        return self._result
