"""Checkpoints of a training in a folder, with a digest of each file, so that damage is noticed.

    FOLDER/step_000000050/     files of torch.distributed.checkpoint, and digests.json, written last
    FOLDER/options.json        what is trained; a checkpoint of something else is not resumed

A save that was interrupted has no digests.json. Knows: files, torch.distributed.checkpoint. Does
not know: what the state means. All ranks call the functions together, and see the folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import EveryRankError, gather

logger = logging.getLogger(__name__)

_DIGESTS = "digests.json"


def save(state: dict[str, Any], directory: Path, step: int) -> None:
    """Write directory/step_N; what an earlier run left there is taken away."""
    folder = directory / f"step_{step:09d}"
    if dist.get_rank() == 0 and folder.exists():
        (folder / _DIGESTS).unlink(missing_ok=True)  # first, as it says that the rest is whole
        shutil.rmtree(folder)
    dist.barrier()
    dcp.save(state, checkpoint_id=folder)
    if dist.get_rank() == 0:
        write_json(folder / _DIGESTS, _digests(folder))
    dist.barrier()  # no rank goes on, and perhaps ends, before the checkpoint is whole


def newest_sound(directory: Path) -> Path:
    """Return the last checkpoint whose files are as they were written, as rank 0 sees them.

    Those that are passed over are named in a warning.
    Raises: EveryRankError: there is none; it says what is wrong with each.
    """
    name, refused = gather(_newest_sound(directory) if dist.get_rank() == 0 else None)[0]
    if not name:
        raise EveryRankError(f"{directory}: no checkpoint to resume from{refused}")
    if refused:
        logger.warning("resumed from %s, the one before%s", name, refused)
    return directory / name


def _newest_sound(directory: Path) -> tuple[str, str]:
    """Return the name of the checkpoint, or "", and what is wrong with those after it."""
    refused = ""
    for folder in sorted((f for f in directory.glob("step_*") if f.is_dir()), reverse=True):
        problem = _problem(folder)
        if not problem:
            return folder.name, refused
        refused += f"; {folder.name}: {problem}"
    return "", refused


def _problem(folder: Path) -> str:
    """Return what is wrong with a checkpoint; "" if it is whole."""
    if not (folder / _DIGESTS).exists():
        return f"no {_DIGESTS}, so its save did not come to its end"
    try:
        expected = read_json(folder / _DIGESTS)
    except ValueError as error:
        return str(error).removeprefix(f"{folder}/")
    digests = _digests(folder)
    wrong = sorted(n for n in expected.keys() | digests if expected.get(n) != digests.get(n))
    return f"{', '.join(wrong)}: not the SHA-256 of {_DIGESTS}, so damaged" if wrong else ""


def has_checkpoint(directory: Path) -> bool:
    """Return whether the folder has a checkpoint, sound or not, whose save came to its end.

    One without digests, which another program wrote, counts.
    """
    return any(any(directory.glob(f"step_*/{name}")) for name in (_DIGESTS, ".metadata"))


def write_json(path: Path, value: object) -> None:
    """Write a file so that it is there as a whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(value, indent=1))
    partial.replace(path)


def read_json(path: Path) -> dict[str, str]:
    """Return the texts of a file. Raises ValueError, naming it: it is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("expected an object")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None
    return value


def _digests(folder: Path) -> dict[str, str]:
    digests = {}
    for path in sorted(folder.iterdir()):
        if not path.name.endswith((_DIGESTS, ".partial")):
            with path.open("rb") as file:
                digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests
