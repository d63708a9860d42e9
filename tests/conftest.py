"""Settings that must be made before numba and triton are first imported, and what all tests share.

Tests compile into a folder of their own, and not into the checkout.
Without a GPU, Triton kernels are interpreted.
"""

import os
import tempfile
from collections.abc import Iterator
from unittest import mock

import pytest
import torch

os.environ.setdefault("NUMBA_CACHE_DIR", f"{tempfile.gettempdir()}/trec_qcomm_numba_{os.getuid()}")

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


WHOLE_RUN = 1000  # tests; a run of fewer compiles only what they use


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Let the workers of a whole run share the compilation of kernels."""
    if hasattr(session.config, "workerinput") and len(session.items) > WHOLE_RUN:
        from tests import compiled_kernels

        compiled_kernels.compile_all()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long, so that all workers end with short ones."""
    marked = {i.path for i in items if any(i.iter_markers("slow")) or any(i.iter_markers("dist"))}
    items.sort(key=lambda item: item.path not in marked)


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """Undo what a module leaves in the environment: ranks that are played write to pytest's."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="session", autouse=True)
def fork_server(request: pytest.FixtureRequest) -> None:
    """Start the server of ranks, which then shares pytest's capture, while other tests run."""
    if any(item.get_closest_marker("dist") for item in request.session.items):
        from tests import fork_server

        fork_server.start()
