"""Many small collective programs on ranks that are spawned once; one that fails fails alone.

A rank that leaves a collective in the middle would let its peers wait. So after an error it ends,
which closes its connections and so ends the peers. The programs not yet run get fresh ranks.
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
    """Failure of a program, in the place of its result. reason: a traceback for each rank known."""

    reason: str


def run_programs(
    fn: Callable[[Any], Any],
    world_size: int,
    programs: Mapping[Hashable, Any],
    *,
    timeout_s: float = 120.0,
) -> dict[Hashable, list[Any] | Failed]:
    """Return by name what `fn(argument)` returns on every rank, for each named argument.

    Args:
        fn: an importable function
        programs: the arguments, by name
        timeout_s: the limit for one collective, and for all programs together
    """
    finished: dict[Hashable, list[Any] | Failed] = {}
    for _ in range(1 + MAX_RESTARTS):
        left = {name: argument for name, argument in programs.items() if name not in finished}
        if not left:
            break
        try:
            ranks = run_ranks(_on_rank, world_size, fn, left, timeout_s=timeout_s)
        except RuntimeError as error:  # a rank that died: no telling where
            return finished | dict.fromkeys(left, Failed(str(error)))
        for name in left:
            if not any(name in results for results in ranks):
                break
            finished[name] = _joined([results.get(name) for results in ranks])
    return finished | {
        name: Failed("not run: too many failed") for name in programs if name not in finished
    }


def _on_rank(fn: Callable[[Any], Any], programs: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    results: dict[Hashable, Any] = {}
    for name, argument in programs.items():
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


def results_of(outcome: list[Any] | Failed) -> list[Any]:
    """Return a program's result on each rank. Fail the test where the program failed."""
    if isinstance(outcome, Failed):
        pytest.fail(outcome.reason, pytrace=False)
    return outcome
