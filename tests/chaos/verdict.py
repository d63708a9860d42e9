"""Verdict on the outcome of a case, in words.

Knows: the fields of run.Outcome, read from JSON.
"""

from __future__ import annotations

import re
from typing import Any

# A survivor has to end within this many timeouts after the fault.
MAX_TIMEOUTS = 3.0


def problems(outcome: dict[str, Any]) -> list[str]:
    """Return what is not as it should be.

    Every rank ends in time and none silently, nothing is left, and a resumed training agrees. A
    rank whose phase was the last may have ended well before it noticed; so may all of them.
    """
    victim = _victim(outcome)
    is_stopped = ", stop " in outcome["name"]
    said = []
    if victim is not None and all(end["after_s"] is None for end in outcome["ranks"]):
        said.append("the fault never came")
    for rank, end in enumerate(outcome["ranks"]):
        if end["status"] is None and not (is_stopped and rank == victim):
            said.append(f"rank {rank} hangs")
        late = MAX_TIMEOUTS * outcome["timeout_s"]
        if end["after_s"] is not None and end["status"] and end["after_s"] > late:
            said.append(f"rank {rank} ended only after {end['after_s']} s")
        if rank != victim and end["status"] and not end["words"]:
            said.append(f"rank {rank} ended without words")
        if rank != victim and end["status"] is not None and end["status"] < 0:
            said.append(f"rank {rank} died by signal {-end['status']}")
    if outcome["orphans"]:
        said.append(f"{outcome['orphans']} orphans")
    if outcome["resumed"] not in ("same", "none", "not needed"):
        said.append(f"resume {outcome['resumed']}")
    return said


def one_line(outcome: dict[str, Any]) -> str:
    """Return an outcome for a terminal."""
    ends = ", ".join(f"rank {rank} {_end(end)}" for rank, end in enumerate(outcome["ranks"]))
    wrong = "; ".join(problems(outcome))
    good = f"NOT GOOD: {wrong}" if wrong else "good"
    return f"{outcome['name']}: {ends}; resume {outcome['resumed']}; {good}"


def _victim(outcome: dict[str, Any]) -> int | None:
    match = re.search(r" rank (\d+) in ", outcome["name"])
    return int(match[1]) if match else None


def _end(end: dict[str, Any]) -> str:
    if end["status"] is None:
        return f"did not end ({end['phase']})"
    after = "" if end["after_s"] is None else f" after {end['after_s']} s"
    return f"status {end['status']}{after} ({end['phase']})"
