"""The folder of compiled kernels: which one is taken, and the one warning."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trec_qcomm
from trec_qcomm.jit import cache

PACKAGE = Path(trec_qcomm.__file__).parent
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE = 24, 1
_CHILD = """
import sys, warnings
from pathlib import Path
for folder in sys.argv[1:]:
    try:
        (Path(folder) / "probe").touch()
    except OSError:
        continue
    sys.exit(77)
sys.path.insert(0, sys.argv[1])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import trec_qcomm
    from trec_qcomm.jit import cache
    from trec_qcomm.ops.dispatch import first_outside
import numpy as np
assert trec_qcomm.__file__.startswith(sys.argv[1]), trec_qcomm.__file__
assert first_outside(np.array([1.0, 3.0]), 0.0, 2.0) == 1
ours = [str(w.message) for w in caught if "NUMBA_CACHE_DIR" in str(w.message)]
print(cache.folder(), len(ours), sum(p.suffix == ".nbc" for p in cache.folder().rglob("*")))
"""


def _obey_permissions():
    """Give up root's right to write where permissions forbid it, for what exec starts."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0)


def test_a_read_only_installation_without_a_home_compiles_into_a_temporary_folder(tmp_path):
    """Import and compile where numba alone says: cannot cache function, no locator available."""
    site, home, temporary = (tmp_path / name for name in ("site", "home", "tmp"))
    ignored = shutil.ignore_patterns("__pycache__", "presets")
    shutil.copytree(PACKAGE, site / "trec_qcomm", ignore=ignored)
    home.mkdir()
    temporary.mkdir()
    closed = [home, *(path for path in [site, *site.rglob("*")] if path.is_dir())]
    for path in closed:
        path.chmod(0o555)
    kept = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    environment = kept | {"HOME": str(home), "TMPDIR": str(temporary)}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
    try:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, *map(str, [site, site / "trec_qcomm", home])],
            env=environment,
            cwd=temporary,
            capture_output=True,
            text=True,
            timeout=120,
            preexec_fn=_obey_permissions,
        )
    finally:
        for path in closed:
            path.chmod(0o755)
    if child.returncode == 77:
        pytest.skip("this user may write where permissions forbid it")
    assert child.returncode == 0, child.stderr
    folder, warnings, compiled = child.stdout.split()
    assert Path(folder).parent == temporary / f"trec_qcomm_{os.getuid()}"
    assert Path(folder).parent.stat().st_mode & 0o777 == 0o700
    assert (int(warnings), int(compiled)) == (1, 1)


@pytest.fixture
def choose(monkeypatch):
    """Return the folder that is chosen with these bases, of which none can be written."""

    def choose(*bases, writable=()):
        monkeypatch.setattr(cache, "_bases", lambda: iter(bases))
        unpatched = cache._is_writable
        closed = set(bases) - set(writable)
        monkeypatch.setattr(
            cache, "_is_writable", lambda path: path.parent not in closed and unpatched(path)
        )
        return cache.folder.__wrapped__()

    return choose


def test_a_temporary_folder_takes_over_what_a_warm_up_left(choose, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    image = tmp_path / "image"
    kernel = image / f"trec_qcomm-{cache._digest()}" / "rows_1" / "take.nbc"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"code")
    with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR"):
        folder = choose(image)
    assert folder.parent.parent == tmp_path
    assert (folder / "rows_1" / "take.nbc").read_bytes() == b"code"


@pytest.mark.parametrize("damage", ["others may write", "a link", "a file", "no folder at all"])
def test_a_temporary_folder_that_others_could_fill_is_not_trusted(
    choose, tmp_path, monkeypatch, damage
):
    """What lies there is run as code."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = tmp_path / f"trec_qcomm_{os.getuid()}"
    if damage == "others may write":
        place.mkdir()
        place.chmod(0o777)
    elif damage == "a link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    elif damage == "a file":
        place.touch()
    else:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.warns(RuntimeWarning, match="each process compiles its own; set NUMBA_CACHE_DIR"):
        assert choose(tmp_path / "closed") is None


def test_another_source_has_another_folder(monkeypatch, tmp_path):
    """Numba looks at a kernel's file only, and not at those of the functions that it calls."""
    for name in ("ops/rowwise", "wire"):
        shutil.copytree(PACKAGE / name, tmp_path / name)
    monkeypatch.setattr(cache, "_PACKAGE", tmp_path)
    before = cache._digest()
    assert cache._digest() == before
    os.utime(tmp_path / "ops" / "rowwise" / "cpu.py", (0, 0))  # numba compiles it again
    assert cache._digest() != before
    before = cache._digest()
    with open(tmp_path / "ops" / "rowwise" / "cpu.py", "a") as file:
        file.write("\n")
    assert cache._digest() != before
