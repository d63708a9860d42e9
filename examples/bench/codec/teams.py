"""A contestant at work in several threads: checked, and timed in turn with all others.

Each thread has its own instance on its own tables (parts.deal), and begins when all do; what counts
is the thread that takes longest. With one there is none but the main thread. The codecs themselves
use no threads. As a call may take less than starting threads does, each thread makes several calls
on end, enough for LEAST_S in all.

The time of a thread is wall time less what it spent ready to run, waiting for a core that something
else had (SCHEDSTAT, of Linux): other work on the machine is left out, waiting for the GIL is not.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from contestants import Contestant, error_over_bound
from opponents import Opponent
from parts import Part
from torch import Tensor
from tqdm import tqdm

CALLS = ("encode", "decode")
SCHEDSTAT = Path("/proc/thread-self/schedstat")  # ns on a core, ns waiting for one, slices
LEAST_S, MOST_CALLS = 5e-3, 1000
STARTED_S = 60.0  # until all threads have begun


class Team:
    """Members that work at the same time."""

    def __init__(self, members: Sequence[Opponent], pool: ThreadPoolExecutor) -> None:
        self.members, self.pool = members, pool

    def seconds(self, call: str, times: int = 1) -> float:
        """Time of one call of all members, the mean of so many on end."""
        if len(self.members) == 1:
            return _repeat(self.members[0], call, times)
        together = threading.Barrier(len(self.members))

        def work(member: Opponent) -> float:
            together.wait(timeout=STARTED_S)
            return _repeat(member, call, times)

        return max(self.pool.map(work, self.members))

    @property
    def nbytes(self) -> int:
        return sum(member.nbytes() for member in self.members)


def _repeat(member: Opponent, call: str, times: int) -> float:
    begin = time.perf_counter()  # before `waited`, so that all that is taken off has been counted
    waited = waited_s()
    for _ in range(times):
        getattr(member, call)()
    waited = waited_s() - waited
    return (time.perf_counter() - begin - waited) / times


def waited_s() -> float:
    """How long this thread has waited for a core so far; 0 where nothing tells."""
    return int(SCHEDSTAT.read_text().split()[1]) / 1e9 if SCHEDSTAT.exists() else 0.0


@contextmanager
def threads(number: int) -> Iterator[ThreadPoolExecutor]:
    """A pool in whose threads torch starts no others."""
    with ThreadPoolExecutor(number, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield pool


def round_trip(contestant: Contestant, parts: Sequence[Part], pool: ThreadPoolExecutor) -> Team:
    """A team that has encoded and decoded once, all members at the same time."""
    team = Team([contestant.make(part) for part in parts], pool)
    for member in team.members:
        member.out[:] = np.nan  # so that what is not written is seen
    for call in CALLS:
        team.seconds(call)
    return team


def decoded(team: Team, parts: Sequence[Part]) -> list[Tensor]:
    """[R, D] each. Raises ValueError: another number or type of values."""
    found = []
    for member, part in zip(team.members, parts, strict=True):
        if member.out.dtype != np.float32 or member.out.size != part.rows.numel():
            raise ValueError(f"{member.out.size} {member.out.dtype} for {part.rows.numel()} values")
        found.append(torch.tensor(member.out).view_as(part.rows))
    return found


def wrong(contestant: Contestant, team: Team, parts: Sequence[Part]) -> str | None:
    """What is wrong with what a team has decoded, and with NaN where it promises to keep these."""
    try:
        for part, rows in zip(parts, decoded(team, parts), strict=True):
            reason = contestant.wrong(part, rows)
            if reason is not None:
                return reason
        return loses_nan(contestant, parts, team.pool) if contestant.keeps_nan else None
    except ValueError as error:
        return str(error)


def loses_nan(
    contestant: Contestant, parts: Sequence[Part], pool: ThreadPoolExecutor
) -> str | None:
    """The same with a NaN at the begin of every table: it arrives, or the reason is told."""
    poisoned = [replace(part, rows=part.rows.clone()) for part in parts]
    for part in poisoned:
        part.rows[part.segments.offsets[:-1], 0] = math.nan
    team = round_trip(contestant, poisoned, pool)
    for part, rows in zip(poisoned, decoded(team, poisoned), strict=True):
        if not bool(rows.isnan()[part.rows.isnan()].all()):
            return "NaN is lost"
    return None


def errors(contestant: Contestant, team: Team, parts: Sequence[Part]) -> tuple[float, float | None]:
    """The largest |x - decoded| of any value; and the worst over its table's bound, where that is a
    fraction of the range."""
    largest, worst = 0.0, None
    for part, rows in zip(parts, decoded(team, parts), strict=True):
        largest = max(largest, float((part.rows.double() - rows.double()).abs().max()))
        if contestant.bound:
            worst = max(worst or 0.0, error_over_bound(contestant.bound, part, rows))
    return largest, worst


def in_turn(
    teams: Mapping[str, Team], num_repeats: int, label: str
) -> dict[tuple[str, str], list[float]]:
    """(name, call) -> seconds of each repeat. All teams take turns in every repeat, so that drift
    hits all alike. label: of the progress on stderr."""
    times = {
        (name, call): min(MOST_CALLS, math.ceil(LEAST_S / team.seconds(call)))
        for name, team in teams.items()
        for call in CALLS
    }
    found: dict[tuple[str, str], list[float]] = {key: [] for key in times}
    for _ in tqdm(range(num_repeats), desc=label, unit="repeat"):
        for name, call in times:
            found[name, call].append(teams[name].seconds(call, times[name, call]))
    return found
