"""The folder that belongs to a TSV, made at the first training on it.

Knows: where it lies, whether it is still that of the file. Does not know: torch, ranks. All ranks
of a machine may call `make_ready` at once: one makes the folder, the others wait for it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from data.convert.run import Conversion, convert, is_made
from data.ids import IdChoice
from data.tsv import list_files

logger = logging.getLogger(__name__)

SMALL_NBYTES = 64 << 20  # of files that one process reads, without a progress line
_SCRIPT = Path(__file__).parents[2] / "preprocess.py"


def default_folder(source: Path, choice: IdChoice) -> Path:
    """Return the folder beside a source, or one for temporary files where none can be written."""
    source = source.resolve()
    name, parent = f"{source.name}.{choice}", source.parent
    if os.access(parent, os.W_OK) and parent.stat().st_mode & 0o222:
        return parent / name
    digest = hashlib.sha256(bytes(source)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"criteo_{os.getuid()}" / f"{name}.{digest}"


def make_ready(source: Path, choice: IdChoice) -> Path:
    """Return the folder of a TSV, which is made if it is not there or the TSV has changed.

    Raises: ValueError: as `convert` does.
    """
    out, files = default_folder(source, choice), list_files(source)
    if is_made(Conversion(files, out, choice)):
        return out
    logger.warning("%s: made ready to train on, once, in %s", source, out)
    if sum(file.stat().st_size for file in files) <= SMALL_NBYTES:
        convert(source, out, choice, replace=True)
        return out
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in choice.to_json().items()]
    command = [sys.executable, _SCRIPT, source, "--out", out, "--replace", *arguments]
    if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
        raise ValueError(f"{source}: could not be made ready; preprocess.py says why above")
    return out
