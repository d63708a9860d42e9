"""Settings that must be made before numba and triton are first imported, and the fork server.

Tests compile into a folder of their own, and not into the checkout.
Without a GPU, Triton kernels are interpreted.
"""

import os
import tempfile

import pytest
import torch

os.environ.setdefault("NUMBA_CACHE_DIR", f"{tempfile.gettempdir()}/trec_qcomm_numba_{os.getuid()}")

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def fork_server(request: pytest.FixtureRequest) -> None:
    """Start the server of ranks, which then shares pytest's capture, while other tests run."""
    if any(item.get_closest_marker("dist") for item in request.session.items):
        from tests import fork_server

        fork_server.start()
