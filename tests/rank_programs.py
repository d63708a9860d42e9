"""Many small collective programs on ranks that are spawned once; one that fails fails alone.

A rank that leaves a collective in the middle would let its peers wait. So after an error it ends,
which closes its connections and so ends the peers; the cells not yet run get fresh ranks.
"""

import traceback
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from trec_qcomm.testing import run_ranks

MAX_RESTARTS = 4


@dataclass(frozen=True)
class Failed:
    """In the place of a result. reason: a traceback, by rank where it is known."""

    reason: str


def run_programs(
    fn: Callable[[Any], Any],
    world_size: int,
    cells: Mapping[Hashable, Any],
    *,
    timeout_s: float = 120.0,
) -> dict[Hashable, list[Any] | Failed]:
    """What `fn(argument)` returns on every rank, for each of the named arguments.

    Args: fn: importable.  timeout_s: of a collective, and of all cells together.
    """
    found: dict[Hashable, list[Any] | Failed] = {}
    for _ in range(1 + MAX_RESTARTS):
        left = {name: argument for name, argument in cells.items() if name not in found}
        if not left:
            break
        try:
            ranks = run_ranks(_on_rank, world_size, fn, left, timeout_s=timeout_s)
        except RuntimeError as error:  # a rank that died: no telling where
            return found | dict.fromkeys(left, Failed(str(error)))
        for name in left:
            if not any(name in results for results in ranks):
                break
            found[name] = _joined([results.get(name) for results in ranks])
    return found | {name: Failed("not run: too many failed") for name in cells if name not in found}


def _on_rank(fn: Callable[[Any], Any], cells: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    results: dict[Hashable, Any] = {}
    for name, argument in cells.items():
        try:
            results[name] = fn(argument)
        except Exception:
            results[name] = Failed(traceback.format_exc())
            break
    return results


def _joined(results: list[Any]) -> list[Any] | Failed:
    failed = [
        f"rank {rank}: {result.reason}"
        for rank, result in enumerate(results)
        if isinstance(result, Failed)
    ]
    return Failed("\n".join(failed)) if failed else results


def results_of(cell: list[Any] | Failed) -> list[Any]:
    """By rank. Fails the test where the cell failed."""
    if isinstance(cell, Failed):
        pytest.fail(cell.reason, pytrace=False)
    return cell
