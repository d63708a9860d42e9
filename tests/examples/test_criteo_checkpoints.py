"""Checkpoints of the Criteo example: damage is noticed, and the one before is taken."""

import logging
import shutil
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
import torch.distributed as dist
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


# Damage of a folder by name, and what is said of it.
DAMAGES = {
    "weight": (lambda f: flip_a_bit(f / "__1_0.distcp"), "__1_0.distcp: not the SHA-256 of"),
    "metadata": (lambda f: flip_a_bit(f / ".metadata"), ".metadata: not the SHA-256 of"),
    "cut short": (
        lambda f: (f / "__0_0.distcp").write_bytes((f / "__0_0.distcp").read_bytes()[:-1]),
        "__0_0.distcp: not the SHA-256 of",
    ),
    "lost": (lambda f: (f / "__1_0.distcp").unlink(), "__1_0.distcp: not the SHA-256 of"),
    "too many": (lambda f: shutil.copy(f / "__1_0.distcp", f / "__2_0.distcp"), "__2_0.distcp: "),
    "interrupted": (lambda f: (f / "digests.json").unlink(), "its save did not come to its end"),
    "digests": (lambda f: (f / "digests.json").write_text("{"), "digests.json: cannot be read: "),
}


def everything(folder: str) -> dict[str, Any]:
    """Return what each rank sees: of each damage the checkpoint taken, its state, the warnings."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    checkpoints.logger.addHandler(handler)
    whole = Path(folder) / "whole"
    for step in STEPS:
        checkpoints.save(state_of(step), whole, step)
    seen: dict[str, Any] = {"undamaged": (*taken(whole), [*said])}
    for name in DAMAGES:
        said.clear()
        seen[name] = (*taken(damaged(whole, name, STEPS[-1:])), [*said])
    all_damaged = damaged(whole, "weight", STEPS)
    with pytest.raises(ValueError, match="no checkpoint to resume from") as error:
        checkpoints.newest_sound(all_damaged)
    seen["all"] = str(error.value)
    checkpoints.save(state_of(15), all_damaged, 15)  # in place of a damaged one
    seen["saved again"] = taken(all_damaged)
    return seen


def damaged(whole: Path, name: str, steps: tuple[int, ...]) -> Path:
    """Return a copy whose checkpoints of these steps are damaged."""
    copy = whole.with_name(f"{name} {len(steps)}")
    if dist.get_rank() == 0:
        shutil.copytree(whole, copy)
        for step in steps:
            DAMAGES[name][0](copy / f"step_{step:09d}")
    dist.barrier()
    return copy


def taken(directory: Path) -> tuple[str, int]:
    """Return the checkpoint's name and the step in it, once its tensors are what was saved."""
    checkpoint = checkpoints.newest_sound(directory)
    state = state_of(0)
    load(state, checkpoint_id=checkpoint)
    step = int(state["step"])
    assert torch.equal(state[f"rank{dist.get_rank()}"], torch.full((1000,), float(step)))
    return checkpoint.name, step


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    first, second = run_ranks(everything, 2, str(tmp_path_factory.mktemp("checkpoints")))
    assert first == second  # both ranks take the same
    return first


@pytest.mark.dist
def test_the_last_one_is_taken_where_nothing_is_damaged(seen: dict[str, Any]) -> None:
    assert seen["undamaged"] == ("step_000000015", 15, [])


@pytest.mark.dist
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_named_and_the_one_before_taken(seen: dict[str, Any], damage: str) -> None:
    name, step, (said,) = seen[damage]
    assert (name, step) == ("step_000000010", 10)
    assert said.startswith("resumed from step_000000010, the one before; step_000000015: ")
    assert DAMAGES[damage][1] in said


@pytest.mark.dist
def test_without_a_sound_one_each_is_told(seen: dict[str, Any]) -> None:
    assert seen["all"].count("so damaged") == len(STEPS)
    assert seen["saved again"] == ("step_000000015", 15)


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
