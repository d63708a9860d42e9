"""CPU tensors that stand in for those in a GPU's memory, and what the host reads of them."""

import sys
from contextlib import contextmanager
from unittest import mock

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from tests.ops.interpreter import quickly
from trec_qcomm.core import transfer
from trec_qcomm.ops.binding import default_backend
from trec_qcomm.wire import frame

READS = (
    "item", "tolist", "numpy", "cpu", "nonzero", "equal", "masked_select", "unique", "__bool__",
    "__int__", "__float__", "__index__",
)  # fmt: skip


@contextmanager
def as_on_a_gpu():
    """Within, CPU tensors take the way of a GPU's."""
    patched = mock.patch.object(frame, "on_gpu", return_value=True)
    with patched, default_backend("gpu"), quickly():
        yield


class HostReads(TorchFunctionMode):
    """Notes in `found` by what the host reads `given` tensors, or any that were made of them, that
    kernels took or that were uploaded: on a GPU each of these would wait. Enter by `watching`."""

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
        if watched and func.__name__ in READS:
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
