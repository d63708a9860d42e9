"""Checkpoints of a training in a folder, with a digest of each file, so that damage is noticed.

    FOLDER/step_000000050/     files of torch.distributed.checkpoint, and digests.json, written last
    FOLDER/options.json        what is trained; a checkpoint of something else is not resumed

A save that was interrupted has no digests.json. A Saver may write while the training goes on.
Knows: files, torch.distributed.checkpoint. Does not know: what the state means. Every rank calls
the functions that are marked "Collective", and all ranks see the folder.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from failures import EveryRankError, gather
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.shard import Shard
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as save_state

logger = logging.getLogger(__name__)

_DIGESTS = "digests.json"
_PARTIAL = f".{_DIGESTS}.partial"


def save(state: dict[str, Any], directory: Path, step: int) -> None:
    """Write directory/step_N; what an earlier run left there is taken away. Collective."""
    folder = _emptied(directory, step)
    save_state(state, checkpoint_id=folder)
    _seal(folder)


class Saver:
    """Checkpoints that a thread writes, from a copy of the state, while the training goes on.

    One is written at a time: a save waits for the one before. What went wrong in the thread is
    raised by the next `save` or `wait`. Made by all ranks together, as it makes a process group:
    collectives of the thread and of the training would get in one another's way in one group.
    """

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo")
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def save(self, state: dict[str, Any], directory: Path, step: int) -> None:
        """Copy the state and begin to write directory/step_N, as `save` writes it. Collective."""
        self.wait()
        folder = _emptied(directory, step)
        where = {"checkpoint_id": folder, "process_group": self._group}
        written = async_save(state, async_stager=_Copies(), **where)
        assert isinstance(written, Future)  # not so where the copy, too, is made by a thread
        self._pending = self._thread.submit(self._finish, written, folder)

    def wait(self) -> None:
        """Return when the checkpoint that is being written is whole. Collective."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _finish(self, written: Future[Any], folder: Path) -> None:
        written.result()
        _seal(folder, self._group)


class _Copies(BlockingAsyncStager):
    """Copies of all that a state holds, on the device where it is.

    torch's own stager knows no ShardedTensor, and the one before it copies the memory of all tables
    of a kernel for each of its tables.
    """

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        copied: dict[str, Any] = _copied(state_dict)
        return copied


def _copied(value: Any) -> Any:
    if isinstance(value, ShardedTensor):
        shards = [Shard(_copied(shard.tensor), shard.metadata) for shard in value.local_shards()]
        return ShardedTensor._init_from_local_shards_and_global_metadata(
            shards, value.metadata(), process_group=value._process_group
        )
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return copy.deepcopy(value)


def _emptied(directory: Path, step: int) -> Path:
    """Return directory/step_N, where nothing of an earlier run is left. Collective."""
    folder = directory / f"step_{step:09d}"
    if dist.get_rank() == 0 and folder.exists():
        (folder / _DIGESTS).unlink(missing_ok=True)  # first, as it says that the rest is whole
        shutil.rmtree(folder)
    dist.barrier()
    return folder


def _seal(folder: Path, group: dist.ProcessGroup | None = None) -> None:
    """Write the digests of the files, after which the checkpoint is whole. Collective."""
    digests: dict[str, str] = {}
    for of_rank in gather(_digests(_own_share(_files(folder))), group):
        digests |= of_rank
    if dist.get_rank() == 0:
        write_json(folder / _DIGESTS, digests)
    dist.barrier(group)  # no rank goes on, and perhaps ends, before the checkpoint is whole


def newest_sound(directory: Path) -> Path:
    """Return the last checkpoint whose files are as they were written. Collective.

    Those that are passed over are named in a warning.
    Raises: EveryRankError: there is none; it says what is wrong with each.
    """
    refused = []
    names = [folder.name for folder in list_checkpoints(directory)]
    names = gather(names)[0]  # another rank may see the folder of a save that just begins
    for folder in (directory / name for name in reversed(names)):
        problems = [problem for of_rank in gather(_problems(folder)) for problem in of_rank]
        if not problems:
            for reason in refused:
                logger.warning("%s; not resumed from", reason)
            if refused:
                logger.warning("%s: the checkpoint before is whole; resumed from it", folder)
            return folder
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        refused.append(f"{folder}: {problems[0]}{more}")
    reasons = "".join(f"; {reason}" for reason in refused)
    raise EveryRankError(f"{directory}: no checkpoint to resume from{reasons}")


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the folders of checkpoints in the order of their steps, whole or not."""
    return sorted(folder for folder in directory.glob("step_*") if folder.is_dir())


def has_checkpoint(directory: Path) -> bool:
    """Return whether the folder has a checkpoint, sound or not, whose save came to its end.

    One without digests, which another program wrote, counts.
    """
    names = (_DIGESTS, ".metadata")
    return any((folder / name).exists() for folder in list_checkpoints(directory) for name in names)


def write_json(path: Path, value: object) -> None:
    """Write a file so that it is there as a whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
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


def _problems(folder: Path) -> list[str]:
    """Return what is wrong with this rank's share of the files, and on rank 0 with their list."""
    is_first = dist.get_rank() == 0
    if not (folder / _DIGESTS).exists():
        return [f"no {_DIGESTS}, so its save did not come to its end"] * is_first
    try:
        expected = read_json(folder / _DIGESTS)
    except ValueError as error:
        return [str(error).removeprefix(f"{folder}/")] * is_first
    present = {path.name for path in _files(folder)}
    problems = [f"{name}: missing" for name in sorted(expected.keys() - present)] * is_first
    problems += [f"{name}: no digest" for name in sorted(present - expected.keys())] * is_first
    names = _own_share(sorted(expected.keys() & present))
    digests = _digests([folder / name for name in names])
    return problems + [
        f"{name}: its SHA-256 is not that of {_DIGESTS}, so it was damaged"
        for name in names
        if digests[name] != expected[name]
    ]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name not in (_DIGESTS, _PARTIAL))


def _own_share(files: list[Any]) -> list[Any]:
    return files[dist.get_rank() :: dist.get_world_size()]


def _digests(files: list[Path]) -> dict[str, str]:
    digests = {}
    for path in files:
        with path.open("rb") as file:
            digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests
