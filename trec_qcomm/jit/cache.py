"""The folder of compiled kernels.

It is the first writable folder of NUMBA_CACHE_DIR, __pycache__ of this package, and the user's
cache folder. If none can be written, as in a container with a read-only file system, it is a folder
of this user among the temporary files. Kernels that a warm-up left in the other folders are then
copied there. If that fails, too, each process compiles for itself.

The folder has a subfolder for each state of the source files, because numba checks a kernel's own
file but not the files of the functions that it calls. It does not take kernels of another path.
"""

import functools
import hashlib
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from trec_qcomm.core.version import __version__

_PACKAGE = Path(__file__).parents[1]


@functools.cache
def folder() -> Path | None:
    """Return the folder of this version's compiled kernels, which exists; None where there is none.

    Warns once if the folder is a temporary one or None.
    """
    name = f"trec_qcomm-{_digest()}"
    for base in _bases():
        if _is_writable(base / name):
            return base / name
    temporary = _temporary()
    if temporary is None or not _is_writable(temporary / name):
        warn("there is no folder for them, so each process compiles its own")
        return None
    _take_over([base / name for base in _bases()], temporary / name)
    warn(f"they are kept in {temporary}")
    return temporary / name


def warn(what: str) -> None:
    """Warn about compiled kernels, and say what helps."""
    warnings.warn(
        f"trec_qcomm: compiled CPU kernels: {what}; set NUMBA_CACHE_DIR to a folder that can be "
        "written and lasts",
        RuntimeWarning,
        stacklevel=2,
    )


def _bases() -> Iterator[Path]:
    """Return the places of the folder, the best one first."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(os.environ["NUMBA_CACHE_DIR"]).absolute()
    yield _PACKAGE / "__pycache__"
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(caches):
        yield Path(caches) / "numba"


def _is_writable(path: Path) -> bool:
    """Return whether files can be made in the folder, which is made where it is missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError:
        return False
    return True


def _temporary() -> Path | None:
    """Return a folder that only this user can write: what lies in it is run as code."""
    try:
        path = Path(tempfile.gettempdir()) / f"trec_qcomm_{os.getuid()}"
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o022
    return path if private and status.st_uid == os.getuid() else None


def _take_over(sources: list[Path], target: Path) -> None:
    """Copy what one of the folders has. A rank that copies at the same time writes the same."""
    for source in sources:
        try:
            files = [path for path in source.rglob("*") if path.is_file()]
            for path in files:
                copy = target / path.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                if not copy.exists():
                    partial = copy.with_name(f"{copy.name}.{os.getpid()}")
                    shutil.copyfile(path, partial)
                    partial.replace(copy)
        except OSError:
            continue  # compiled again, then
        if files:
            return


def _digest() -> str:
    """Return a name for the paths, times and content of all files with functions for numba."""
    digest = hashlib.sha256(__version__.encode())
    for path in sorted([*_PACKAGE.glob("ops/**/*.py"), *_PACKAGE.glob("ext/**/*.py")]):
        text = path.read_bytes()
        if b"trec_qcomm.jit" in text:
            digest.update(f"{path} {path.stat().st_mtime}".encode() + text)
    return digest.hexdigest()[:12]
