"""Backends of ops, and the memory that each works on. Without a GPU, "gpu" is interpreted."""

import torch

from trec_qcomm.ops.dispatch import default_backend

BACKENDS = ("reference", "cpu", "gpu")
_GPU = "cuda" if torch.cuda.is_available() else "cpu"


def device_of(backend: str) -> str:
    return _GPU if backend == "gpu" else "cpu"


def assert_equal(tensors, case=""):
    """Assert that all tensors have the same bits, wherever they are."""
    first, *others = (tensor.cpu() for tensor in tensors)
    for other in others:
        assert torch.equal(first, other), case


def on(backend: str, function, *args, **options):
    """Call a function by the kernels of a backend."""
    with default_backend(backend):
        return function(*args, **options)
