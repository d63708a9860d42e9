"""CPU tensors that stand in for those in a GPU's memory, and what the host reads of them."""

import sys
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from tests.ops.interpreter import fast_interpreter
from trec_qcomm.core import transfer
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.wire import frame

READS = (
    "item", "tolist", "numpy", "cpu", "nonzero", "argwhere", "equal", "allclose", "is_nonzero",
    "masked_select", "unique", "unique_consecutive", "bincount", "__bool__", "__int__", "__float__",
    "__index__",
)  # fmt: skip


@contextmanager
def fake_gpu():
    """Within, CPU tensors take the way of a GPU's."""
    patched = mock.patch.object(frame, "is_on_gpu", return_value=True)
    with patched, default_backend("gpu"), fast_interpreter():
        yield


def _waits(name, args, kwargs):
    """Whether that function of a GPU's tensors waits for it: to read them, or for the size of what
    it makes. A device is "cpu" where the name stands in the code: that of a stand-in is, too."""
    if name == "to":
        where = (*args[1:], kwargs.get("device"))
        return any(isinstance(device, str) and device == "cpu" for device in where)
    if name == "repeat_interleave":
        repeats = kwargs.get("repeats", args[1] if len(args) > 1 else None)
        return kwargs.get("output_size") is None and not isinstance(repeats, int)
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name in ("__getitem__", "__setitem__", "index_put", "index_put_"):
        masked = any(isinstance(i, Tensor) and i.dtype == torch.bool for i in tree_leaves(args[1]))
        return masked and (name == "__getitem__" or torch.as_tensor(args[2]).numel() != 1)
    return name in READS


class HostReads(TorchFunctionMode):
    """Notes in `found` what makes the host wait for `given` tensors, or any that were made of them,
    that kernels took or that were uploaded, were they a GPU's; see `_waits`. Use `watching`."""

    def __init__(self, *given: Tensor):
        super().__init__()
        self.found: list[str] = []
        self._kept: list[Tensor] = []  # so that no other tensor gets their memory
        self._memory: set[int] = set()
        self._paused = False
        self.add(given)

    def add(self, tensors):
        for t in tree_leaves(tensors):
            if isinstance(t, Tensor) and t.numel():
                self._kept.append(t)
                self._memory.add(t.untyped_storage().data_ptr())

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        watched = any(t.untyped_storage().data_ptr() in self._memory for t in given)
        if watched and _waits(func.__name__, args, kwargs):
            self.found.append(func.__name__)
        made = func(*args, **kwargs)
        if watched:
            self.add(made)
        return made

    @contextmanager
    def watching(self):
        from triton.runtime.interpreter import GridExecutor

        run = GridExecutor.__call__

        def run_unwatched(executor, *args, **options):
            self.add(args)
            self._paused = True
            try:
                return run(executor, *args, **options)
            finally:
                self._paused = False

        def upload(device, *vectors):
            copies = tuple(vector.clone() for vector in vectors)
            self.add(copies)
            return copies

        ours = [m for name, m in sys.modules.items() if name.startswith("trec_qcomm.")]
        with mock.patch.object(GridExecutor, "__call__", run_unwatched):
            patches = [
                mock.patch.object(m, "upload", upload)
                for m in ours
                if getattr(m, "upload", None) is transfer.upload
            ]
            for patch in patches:
                patch.start()
            try:
                with self:
                    yield self
            finally:
                for patch in patches:
                    patch.stop()
