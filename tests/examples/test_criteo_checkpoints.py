"""Checkpoints of the Criteo example: damage is noticed, and the one before is taken."""

import errno
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import CheckpointException, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load

from trec_qcomm.testing import run_ranks

STEPS = (5, 10, 15)


def state_of(step: int) -> dict[str, Any]:
    """State that every rank has a file of."""
    rank = dist.get_rank()
    return {f"rank{rank}": torch.full((1000,), float(step)), "step": torch.tensor(step)}


def flip_a_bit(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)


def in_a_weight(folder: Path) -> None:
    flip_a_bit(folder / "__1_0.distcp")


def in_the_metadata(folder: Path) -> None:
    flip_a_bit(folder / ".metadata")


def cut_short(folder: Path) -> None:
    file = folder / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1])


def one_file_lost(folder: Path) -> None:
    (folder / "__1_0.distcp").unlink()


def a_file_too_many(folder: Path) -> None:
    shutil.copy(folder / "__1_0.distcp", folder / "__2_0.distcp")


def interrupted(folder: Path) -> None:
    (folder / "digests.json").unlink()


def digests_damaged(folder: Path) -> None:
    flip_a_bit(folder / "digests.json")


def digests_cut_short(folder: Path) -> None:
    file = folder / "digests.json"
    file.write_bytes(file.read_bytes()[:20])


DAMAGES = {
    in_a_weight: "__1_0.distcp: its SHA-256 is not that of digests.json, so it was damaged",
    in_the_metadata: ".metadata: its SHA-256 is not that of",
    cut_short: "__0_0.distcp: its SHA-256 is not that of",
    one_file_lost: "__1_0.distcp: missing",
    a_file_too_many: "__2_0.distcp: no digest",
    interrupted: "no digests.json, so its save did not come to its end",
    digests_damaged: "",
    digests_cut_short: "digests.json: cannot be read: ",
}


def everything(folder: str) -> dict[str, Any]:
    """Return what rank 0 sees: of each damage the checkpoint taken, its state, and the warnings."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    checkpoints.logger.addHandler(handler)
    whole = Path(folder) / "whole"
    for step in STEPS:
        checkpoints.save(state_of(step), whole, step)
    seen: dict[str, Any] = {"undamaged": taken(whole), "said of undamaged": [*said]}
    for damage in DAMAGES:
        said.clear()
        copy = Path(folder) / damage.__name__
        damage_copies(whole, copy, damage, STEPS[-1:])
        seen[damage.__name__] = (*taken(copy), [*said])
    all_damaged = Path(folder) / "all"
    damage_copies(whole, all_damaged, in_a_weight, STEPS)
    with pytest.raises(ValueError, match="no checkpoint to resume from") as error:
        checkpoints.newest_sound(all_damaged)
    seen["all"] = str(error.value)
    checkpoints.save(state_of(15), all_damaged, 15)  # in place of a damaged one
    seen["saved again"] = taken(all_damaged)
    seen["stopped"] = stopped_in_a_save(whole)
    seen["listed apart"] = listed_apart(whole)
    return seen | beside_the_training(Path(folder) / "beside")


def beside_the_training(directory: Path) -> dict[str, Any]:
    """Return what is taken while a Saver writes, after a second save, and after one that failed."""
    saver, leave = checkpoints.Saver(), threading.Event()
    saver.save(state_of(5), directory, 5)
    saver.wait()
    state, seen = state_of(10), {}
    with writing(lambda: leave.wait(60)):
        saver.save(state, directory, 10)
        for tensor in state.values():
            tensor.zero_()  # the training goes on
        seen["while it writes"] = taken(directory)
        threading.Timer(0.1, leave.set).start()
        saver.save(state_of(15), directory, 15)
        seen["after the second began"] = (directory / "step_000000010" / "digests.json").exists()
        saver.wait()
    seen["after both"] = taken(directory)
    shutil.rmtree(directory / "step_000000015", ignore_errors=True)
    dist.barrier()
    seen["copied"] = taken(directory)
    with writing(fill_the_disk):
        saver.save(state_of(20), directory, 20)
        with pytest.raises(CheckpointException, match="No space left"):
            saver.wait()
    seen["after a failure"] = taken(directory)
    saver.save(state_of(25), directory, 25)
    saver.wait()
    seen["after that"] = taken(directory)
    return seen


def fill_the_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left")


@contextmanager
def writing(call: Callable[[], object]) -> Iterator[None]:
    """Call this before each write of a rank's files within."""
    write = FileSystemWriter.write_data

    def write_after(*words: Any) -> Any:
        call()
        return write(*words)

    FileSystemWriter.write_data = write_after
    try:
        yield
    finally:
        FileSystemWriter.write_data = write


def damage_copies(whole: Path, copy: Path, damage: Any, steps: tuple[int, ...]) -> None:
    if dist.get_rank() == 0:
        shutil.copytree(whole, copy)
        for step in steps:
            damage(copy / f"step_{step:09d}")
    dist.barrier()


def taken(directory: Path) -> tuple[str, int]:
    """Return the checkpoint's name and the step in it, once its tensors are what was saved."""
    checkpoint = checkpoints.newest_sound(directory)
    state = state_of(0)
    load(state, checkpoint_id=checkpoint)
    step = int(state["step"])
    assert torch.equal(state[f"rank{dist.get_rank()}"], torch.full((1000,), float(step)))
    return checkpoint.name, step


def listed_apart(directory: Path) -> tuple[str, int]:
    """Return what is taken while rank 1 sees one folder more than rank 0."""
    listed = checkpoints.list_checkpoints
    if dist.get_rank() == 1:
        more = directory / "step_000000099"
        checkpoints.list_checkpoints = lambda path: [*listed(path), more]  # type: ignore[assignment]
    try:
        return taken(directory)
    finally:
        checkpoints.list_checkpoints = listed  # type: ignore[assignment]


def stopped_in_a_save(directory: Path) -> tuple[str, int]:
    """Return what is taken after a save of step 15, again, that ended before its digests."""
    write_json = checkpoints.write_json
    checkpoints.write_json = stop  # type: ignore[assignment]
    try:
        checkpoints.save(state_of(15), directory, 15)
    except KeyboardInterrupt:
        assert dist.get_rank() == 0
        dist.barrier()
    finally:
        checkpoints.write_json = write_json
    return taken(directory)


def stop(path: Path, value: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    first, second = run_ranks(everything, 2, str(tmp_path_factory.mktemp("checkpoints")))
    for name, of_first in first.items():  # both ranks must take the same
        assert of_first == second[name]
    return first


@pytest.mark.dist
def test_the_last_one_is_taken_where_nothing_is_damaged(seen: dict[str, Any]) -> None:
    assert seen["undamaged"] == ("step_000000015", 15)
    assert seen["said of undamaged"] == []


@pytest.mark.dist
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_named_and_the_one_before_taken(seen: dict[str, Any], damage: Any) -> None:
    name, step, said = seen[damage.__name__]
    assert (name, step) == ("step_000000010", 10)
    refused, chosen = said
    assert "step_000000015: " + DAMAGES[damage] in refused
    assert refused.endswith("; not resumed from")
    assert " more" not in refused
    assert "step_000000010: the checkpoint before is whole; resumed from it" in chosen


@pytest.mark.dist
def test_without_a_sound_one_each_is_told(seen: dict[str, Any]) -> None:
    assert seen["all"].count("so it was damaged") == len(STEPS)
    assert seen["saved again"] == ("step_000000015", 15)


@pytest.mark.dist
def test_an_interrupted_save_leaves_the_one_before(seen: dict[str, Any]) -> None:
    assert seen["stopped"] == ("step_000000010", 10)


@pytest.mark.dist
def test_ranks_that_see_other_folders_take_the_same(seen: dict[str, Any]) -> None:
    assert seen["listed apart"] == seen["stopped"]


@pytest.mark.dist
def test_one_that_a_thread_writes_counts_when_it_is_whole(seen: dict[str, Any]) -> None:
    assert seen["while it writes"] == ("step_000000005", 5)
    assert seen["after the second began"]
    assert seen["after both"] == ("step_000000015", 15)
    assert seen["copied"] == ("step_000000010", 10)
    assert seen["after a failure"] == ("step_000000010", 10)
    assert seen["after that"] == ("step_000000025", 25)


def test_a_json_file_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    checkpoints.write_json(path, {"seed": "1"})
    with pytest.raises(TypeError):
        checkpoints.write_json(path, {"seed": object()})
    assert checkpoints.read_json(path) == {"seed": "1"}
    for text in ("{", "[1]", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"options\.json: cannot be read: "):
            checkpoints.read_json(path)
    with pytest.raises(ValueError, match=r"absent\.json: cannot be read: "):
        checkpoints.read_json(tmp_path / "absent.json")
