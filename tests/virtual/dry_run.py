"""Dry run: 'meta' tensors play those of a GPU, and what would run on a GPU is counted.

A tensor without memory has a shape and nothing to read, so whatever the host may not do raises: to
read a GPU's tensor, to mix both memories, to copy other than by core.transfer. Kernels are counted
in the place of being interpreted. Results of collectives and of copies to the host are made up: no
kernel has found an error (-1), sizes are 8, 16, 24 and so on.
"""

import importlib
import math
import os
import pkgutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import trec_qcomm.ops
from tests.virtual.written import written_arguments
from trec_qcomm.comm import peers, streams
from trec_qcomm.core import devices, transfer

GPU = torch.device("meta")
ALIGNMENT = 128  # bytes
# Operations that launch nothing, besides views.
FREE = {"aten::" + name for name in (
    "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "detach", "alias",
    "lift_fresh", "_unsafe_view", "_reshape_alias", "set_",
)}  # fmt: skip


@dataclass(frozen=True)
class Costs:
    """What one direction of an exchange, or an all-reduce of a bucket, makes the host do.

    Args:
        kernels: kernels of ours that it launches
        torch: kernels and copies on the GPU that torch launches
        uploads, downloads: copies to the GPU and from it
        nccl: collectives of tensors on the GPU
        waits: times that it waits for the GPU
        gloo: collectives of host tensors, which it waits for
        cpu: operations of torch on CPU tensors
    """

    kernels: int = 0
    torch: int = 0
    uploads: int = 0
    downloads: int = 0
    nccl: int = 0
    waits: int = 0
    gloo: int = 0
    cpu: int = 0

    @property
    def device_operations(self) -> int:
        """What the GPU runs, besides collectives."""
        return self.kernels + self.torch + self.uploads + self.downloads


class Counted(NamedTuple):
    """Costs, and how often each kernel and operation ran on the GPU."""

    costs: Costs
    names: Counter[str]


class DryRun(TorchDispatchMode):
    """Counter of what the code inside its `with` block would do with a GPU; see `dry_run`."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.names: Counter[str] = Counter()  # kernels and operations on the GPU, by name
        self.replies: list[Tensor] = []  # what the host downloads next

    def taken(self) -> Counted:
        """Return what was counted, and count from 0 again."""
        costs = Costs(**{field.name: self.counts[field.name] for field in fields(Costs)})
        counted = Counted(costs, self.names)
        self.counts, self.names = Counter(), Counter()
        return counted

    def count(self, kind: str, name: str = "") -> None:
        self.counts[kind] += 1
        if name:
            self.names[name] += 1

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
        on_gpu = [t for t in tensors if t.device == GPU]
        if not on_gpu:
            self.count("cpu")
            return result
        on_host = [t for t in tensors if t.device != GPU and t.dim()]  # torch passes [] as a number
        assert not on_host, f"{func} mixes the memory of the host and of the GPU"
        if not (func.is_view or func._schema.name in FREE):
            self.count("torch", func._schema.name)
            written = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
            used = written if _makes_new(func) else on_gpu
            self.ran(func._schema.name, used, [*written, *_mutated(func, args)])
        return result

    def ran(self, name: str, tensors: list[Tensor], written: list[Tensor]) -> None:
        """Take note of work on the current stream. Args: written: some of the tensors."""

    def patches(self) -> list[Any]:
        """Return what takes the place of torch's streams: here, nothing is known of them."""
        return [
            mock.patch.object(streams, "_stream", Stream),
            mock.patch.object(torch.cuda, "current_stream", return_value=Stream()),
            mock.patch.object(torch.cuda, "stream", mock.MagicMock()),
            mock.patch.object(Tensor, "record_stream"),
        ]

    # What stands in for a GPU.

    def launch(self, executor, *args: object, **_options: object) -> None:
        name = executor.fn.__module__.removeprefix("trec_qcomm.") + "." + executor.fn.__name__
        tensors = [tensor for tensor in args if isinstance(tensor, Tensor)]
        assert all(tensor.device == GPU for tensor in tensors), f"{name}: host memory"
        self.count("kernels", name)
        given = zip(executor.arg_names, args, strict=False)
        written = written_arguments(executor.fn)
        self.ran(name, tensors, [t for n, t in given if n in written and isinstance(t, Tensor)])

    def upload(self, device: torch.device, vectors: tuple[Tensor, ...]) -> Tensor:
        for vector in vectors:
            assert vector.device.type == "cpu", "an upload of what is on the GPU"
            assert vector.dtype == torch.int64
        self.count("uploads")
        with self.uncounted():
            uploaded = torch.empty(sum(map(len, vectors)), dtype=torch.int64, device=device)
        self.ran("upload", [uploaded], [uploaded])
        return uploaded

    def download(self, vector: Tensor) -> tuple[Tensor, Any]:
        self.count("downloads")
        self.ran("download", [vector], [])
        with self.uncounted():
            return self.made_up(vector), self.event()

    def made_up(self, vector: Tensor) -> Tensor:
        """Return what the host gets for a vector on the GPU: the next of `replies`, or others."""
        if self.replies:
            return self.replies.pop(0)
        if vector.dtype == torch.int32:
            return torch.full(vector.shape, -1, dtype=torch.int32)
        return 8 * torch.arange(1, vector.numel() + 1, dtype=vector.dtype).view(vector.shape)

    def event(self) -> "Event":
        return Event(self)

    def all_to_all(self, out: Tensor, given: Tensor, *, async_op=False, **options):
        for tensor, name in ((out, "output_split_sizes"), (given, "input_split_sizes")):
            sizes = options.get(name)
            assert sizes is None or sum(sizes) == len(tensor), name
            if tensor.device == GPU:
                _check_alignment(torch.split(tensor, sizes or len(tensor)))
        if out.device != GPU:
            with self.uncounted():  # as if all peers sent what this rank does
                out.copy_(given.repeat(math.ceil(len(out) / max(len(given), 1)))[: len(out)])
        work = self.collective("all-to-all", [given], [out])
        return work if async_op else work.wait()

    def all_gather(self, out: Tensor, given: Tensor, *, async_op=False, **_options):
        _check_alignment(torch.split(out, len(given)))
        work = self.collective("all-gather", [given], [out])
        return work if async_op else work.wait()

    def batch(self, operations: list["PointToPoint"]) -> list["Work"]:
        sent, received = ([o.tensor for o in operations if o.kind == k] for k in ("send", "recv"))
        _check_alignment([*sent, *received])
        return [self.collective("sends and receives", sent, received)]

    def all_reduce(self, tensor: Tensor, **_options: object) -> None:
        self.collective("all-reduce", [tensor], [tensor]).wait()

    def collective(self, name: str, sent: list[Tensor], received: list[Tensor]) -> "Work":
        (device,) = {tensor.device for tensor in (*sent, *received)}
        self.count("nccl" if device == GPU else "gloo")
        return Work()

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        before = self.counts.copy(), self.names.copy()
        yield
        self.counts, self.names = before


class Event:
    """End of a copy to the host. When the host asks, it is over; else the host waits."""

    def __init__(self, run: DryRun) -> None:
        self._run = run

    def query(self) -> bool:
        self.synchronize = lambda: None
        return True

    def synchronize(self) -> None:
        self._run.count("waits")


class Work:
    def wait(self) -> None:
        pass


class Stream:
    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    def wait_stream(self, other: "Stream") -> None:
        pass


class PointToPoint:
    def __init__(self, operation, tensor: Tensor, **_options: object) -> None:
        self.kind = "send" if operation is dist.isend else "recv"
        self.tensor = tensor


@dataclass(frozen=True)
class Group:
    """Process group of that many ranks, of which this is rank 0."""

    num_ranks: int

    def size(self) -> int:
        return self.num_ranks

    def rank(self) -> int:
        return 0


R = TypeVar("R", bound=DryRun)


@contextmanager
def dry_run(kind: type[R] = DryRun) -> Iterator[R]:
    """Let 'meta' tensors be a GPU's inside the `with` block; count within `with` of the result."""
    from triton.runtime.interpreter import GridExecutor

    _import_kernels()
    run = kind()
    patches = (
        *run.patches(),
        mock.patch.object(devices, "GPU_TYPES", {*devices.GPU_TYPES, GPU.type}),
        mock.patch.dict(os.environ, {"TRITON_INTERPRET": "0"}),  # which the dispatch reads
        mock.patch.object(GridExecutor, "__call__", lambda *args, **o: run.launch(*args, **o)),
        mock.patch.object(transfer, "_sent", run.upload),
        mock.patch.object(transfer, "_fetched", run.download),
        mock.patch.object(torch, "tensor", _from_numbers(torch.tensor)),
        mock.patch.object(torch, "as_tensor", _from_numbers(torch.as_tensor)),
        mock.patch.object(dist, "all_to_all_single", run.all_to_all),
        mock.patch.object(dist, "all_gather_into_tensor", run.all_gather),
        mock.patch.object(dist, "batch_isend_irecv", run.batch),
        mock.patch.object(dist, "all_reduce", run.all_reduce),
        mock.patch.object(dist, "P2POp", PointToPoint),
        mock.patch.object(dist, "get_rank", return_value=0),
        mock.patch.object(dist, "get_backend_config", return_value="cpu:gloo,cuda:nccl"),
        mock.patch.object(peers, "make_gloo_group", side_effect=lambda pg: pg),
        mock.patch.object(dist, "get_process_group_ranks", lambda pg: list(range(pg.size()))),
    )
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield run


def _check_alignment(pieces: Iterable[Tensor]) -> None:
    """NCCL copies pieces that begin at no multiple of 128 bytes byte by byte."""
    for piece in pieces:
        begin = piece.storage_offset() * piece.element_size()
        assert not piece.numel() or begin % ALIGNMENT == 0, f"a piece at byte {begin}"


def _makes_new(func) -> bool:
    """Return whether an operation asks of its arguments only what shape and dtype they have."""
    name = func._schema.name.removeprefix("aten::")
    return name.startswith("new_") or name.endswith("_like")


def _mutated(func, args) -> list[Tensor]:
    """Return the arguments that an operation changes in place."""
    pairs = zip(func._schema.arguments, args, strict=False)
    changed = [value for a, value in pairs if a.alias_info is not None and a.alias_info.is_write]
    return [t for t in tree_leaves(changed) if isinstance(t, Tensor)]


def _from_numbers(make):
    """Return torch.tensor or as_tensor; to a GPU they copy from memory that is not pinned."""

    def checked(data, *args, **options):
        device = options.get("device")
        assert device is None or torch.device(device) != GPU, "a copy past core.transfer"
        return make(data, *args, **options)

    return checked


@cache
def _import_kernels() -> None:
    """Import all Triton kernels while TRITON_INTERPRET=1 makes them interpreted ones."""
    packages = pkgutil.walk_packages(trec_qcomm.ops.__path__, "trec_qcomm.ops.")
    for name in [package.name for package in packages if package.name.endswith(".gpu")]:
        importlib.import_module(name)
    importlib.import_module("trec_qcomm.ops.frames.gpu")
    importlib.import_module("trec_qcomm.ops.id_messages.gpu")
