"""Forked commands of tests do what subprocess.run does with a new interpreter."""

import fcntl
import os
import subprocess
import sys

import pytest

from tests import fork_server
from tests.commands import run

pytestmark = [
    pytest.mark.dist,
    pytest.mark.skipif(not fork_server.CAN_PRELOAD, reason="commands are not forked here"),
]
CODE = """
import os, sys
print(sys.argv, os.getcwd(), os.environ["WORD"], __name__)
print("wrong", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("form", ["code", "script", "module"])
def test_a_command_is_that_of_a_new_interpreter(tmp_path, form, status):
    (tmp_path / "a_script.py").write_text(CODE)
    start = {"code": ("-c", CODE), "script": ("a_script.py",), "module": ("-m", "a_script")}[form]
    done, theirs = (
        execute(
            [sys.executable, *start, str(status)],
            cwd=tmp_path,
            env=os.environ | {"WORD": "here"},
            capture_output=True,
            text=True,
        )
        for execute in (run, subprocess.run)
    )
    assert done.args == theirs.args
    assert (done.returncode, done.stdout) == (theirs.returncode, theirs.stdout)
    assert theirs.returncode == status
    assert done.stderr == theirs.stderr == "wrong\n"


def test_a_timeout_ends_what_a_command_has_started(tmp_path):
    inner = "import fcntl, time; f = open('held', 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
    inner += "open('holds', 'w'); time.sleep(600)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    for limit in (1.0, 10.0, 60.0):  # the first is enough but where the machine has much to do
        with pytest.raises(subprocess.TimeoutExpired):
            run([sys.executable, "-c", outer], cwd=tmp_path, timeout=limit)
        if (tmp_path / "holds").exists():
            break
    assert (tmp_path / "holds").exists()
    with open(tmp_path / "held") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # waits for its end


def test_a_failed_command_is_an_error():
    with pytest.raises(subprocess.CalledProcessError):
        run([sys.executable, "-c", "raise KeyError('x')"], capture_output=True, check=True)


def test_the_server_has_imported_what_takes_seconds():
    """Without it all goes on, but each rank and command takes seconds more."""
    code = "import gc, sys; print(gc.get_freeze_count() > 0, 'torchrec.models.dlrm' in sys.modules)"
    done = run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "True True\n"
