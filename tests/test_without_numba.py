"""Where numba is not installed the reference codes: the same bytes, and one warning a process.

`report` runs in an interpreter in which numba is blocked, and so do its ranks.
"""

import json
import subprocess
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.commands import run_with
from tests.golden import make
from tests.integration.small_model import dense_optimizer, shard, train
from trec_qcomm import Identity, QComm, load_preset
from trec_qcomm.integration.warm_up import warm_up
from trec_qcomm.lab.warm_up import main as warm_up_command
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.testing import frame_of, run_ranks

pytestmark = pytest.mark.slow
BLOCKED = "import sys\nsys.modules['numba'] = sys.modules['llvmlite'] = None\n"
PROGRAM = """
import json
from tests.test_without_numba import report
print(json.dumps(dict(report())))
"""
# Golden frames, and every bit of a header. Two compare the texts of errors with those of the CPU.
FILES = ("tests/golden", "tests/wire/test_frame.py", "tests/wire/test_id_messages.py")
OTHERS = "not vector_lz and not forged and not refuses_what"


def with_warnings(work: Callable[[], Any]) -> list[Any]:
    """Return what `work` returns, and all warnings that lines of this package caused."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work()
    return [result, [str(w.message) for w in caught if "/trec_qcomm/" in w.filename]]


def train_best() -> list[float]:
    qcomm = QComm.from_preset("best")
    model = shard(qcomm, wrapper=qcomm.data_parallel_wrapper())
    return train(model, dense_optimizer(model), range(1, 3))


def rank() -> list[Any]:
    return with_warnings(train_best)


def encode(name: str = "identity") -> None:
    frame_of(make.CODECS[name], make.rows(Identity()), make.NUM_ROWS)


def report() -> Iterator[tuple[str, Any]]:
    yield "warned", with_warnings(lambda: [encode(), encode("rowwise_4")])[1]
    yield "tests", int(pytest.main(["-q", "-p", "no:cacheprovider", "-k", OTHERS, *FILES]))
    yield "trained", run_ranks(rank, 2)
    yield "missing", warm_up(load_preset("best"))
    with pytest.raises(ImportError) as error:
        encode("error_bounded_vector_lz")
    yield "vector_lz", str(error.value)
    with pytest.raises(ValueError, match="backend") as error, default_backend("cpu"):
        encode()
    yield "cpu", str(error.value)
    with pytest.raises(SystemExit):
        warm_up_command(["best"])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    return run_with(BLOCKED, tmp_path_factory.mktemp("blocked"), PROGRAM)


@pytest.fixture(scope="module")
def said(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_bytes_are_the_same_and_damage_is_found(done, said):
    """In this run of pytest a warning of numpy's that our lines cause is an error."""
    assert [text.partition(",")[0] for text in said["warned"]] == [
        "trec_qcomm: numba is not installed"
    ]
    assert said["tests"] == 0, done.stdout


@pytest.mark.dist
def test_two_ranks_train_the_same_and_each_warns_once(said):
    compiled = run_ranks(train_best, 2, timeout_s=250)  # numba may take minutes
    assert [losses for losses, _ in said["trained"]] == compiled
    for _, warned in said["trained"]:
        assert len([text for text in warned if "numba is not installed" in text]) == 1


def test_what_needs_numba_says_so(done, said):
    assert said["missing"] == 0
    assert said["vector_lz"].startswith("error_bounded.encoder: vector_lz needs numba")
    assert said["cpu"].startswith("backend 'cpu': numba is not installed")
    assert "error: numba: not installed" in done.stderr


def test_a_broken_numba_is_an_error(tmp_path):
    (tmp_path / "numba.py").write_text("import a_part_of_numba")
    done = run_with("", tmp_path, "import trec_qcomm.jit")
    assert done.stderr.endswith("No module named 'a_part_of_numba'\n")
