"""A fake GPU: CPU tensors that are treated as a GPU's, and a record of what would wait for a GPU.

`fake_gpu()` makes the package take its GPU code for CPU tensors. `HostReads` notes each call that
would make the host wait for a GPU if the tensors were there.
"""

import sys
from contextlib import ExitStack, contextmanager
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
    """Treat CPU tensors as a GPU's inside the `with` block; kernels are interpreted."""
    patched = mock.patch.object(frame, "is_on_gpu", return_value=True)
    with patched, default_backend("gpu"), fast_interpreter(), _Division():
        yield


class _Division(TorchFunctionMode):
    """Division by a Python number as CUDA has it: a multiplication by the float32 reciprocal."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in ("div_", "div", "__truediv__") and isinstance(args[1], int | float):
            args = args[0], float(torch.tensor(args[1], dtype=torch.float32).reciprocal())
            func = torch.Tensor.mul_ if func.__name__ == "div_" else torch.mul
        return func(*args, **(kwargs or {}))


def _waits(name, args, kwargs):
    """Return whether this torch function, called with a GPU's tensors, waits for the GPU: to read
    the tensors, or for the size of its result.

    A copy to a device counts only where the code names "cpu": the tensors' own device is the CPU,
    too.
    """
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
    """Record of the calls that would make the host wait for a GPU (`_waits`), in `calls`.

    It watches the given tensors, all that are computed from these, all that kernels take, and all
    that are uploaded. Use `watching()`.
    """

    def __init__(self, *given: Tensor):
        super().__init__()
        self.calls: list[str] = []
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
            self.calls.append(func.__name__)
        result = func(*args, **kwargs)
        if watched:
            self.add(result)
        return result

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

        modules = [m for name, m in sys.modules.items() if name.startswith("trec_qcomm.")]
        callers = [m for m in modules if getattr(m, "upload", None) is transfer.upload]
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(GridExecutor, "__call__", run_unwatched))
            for m in callers:
                stack.enter_context(mock.patch.object(m, "upload", upload))
            yield stack.enter_context(self)
