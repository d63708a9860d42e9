"""Search for the choice whose steps take the least time.

Whole candidates are timed first. Those that are nearly as fast as the fastest are timed once more.
Then each part of the fastest is set as in another candidate, one part after the other, and settings
that save time stay. If several settings take equal time, the part gets the finest. Unless exact
TorchRec is far slower than the result, both are timed again at last, without the earlier times:
chance may have favoured them, and a training's first steps are slow.

Knows: choices, seconds. Does not know: sessions, clocks, process groups.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from trec_qcomm.ext.auto.choice import PARTS, Choice

Search = Generator[Choice, Sequence[float], "Tuned"]

_CONTENDER = 1.3  # times the seconds of the fastest candidate: parts of slower ones are not tried
_FAR = 2.0  # times the seconds of the result, above which exact TorchRec is not timed again
_CLOSE = 0.1  # two medians that differ less are measured once more
_GAIN = 0.02  # least gain for which a part is set more coarsely
_TIE = 0.01  # largest loss for which a part is set finer


@dataclass(frozen=True)
class Tuned:
    """Result of a search.

    Args: choice: the choice.  seconds: median of a step's seconds with each choice that was timed.
    """

    choice: Choice
    seconds: Mapping[Choice, float]


class _Times:
    """Seconds of the steps with each choice."""

    def __init__(self) -> None:
        self.steps: dict[Choice, list[float]] = {}

    def measure(self, *choices: Choice) -> Generator[Choice, Sequence[float], None]:
        for choice in choices:
            seconds = yield choice
            self.steps.setdefault(choice, []).extend(seconds)

    def typical(self, choice: Choice) -> float:
        return median(self.steps[choice])

    def pays(self, choice: Choice, before: Choice, *, is_finer: bool) -> bool:
        """Return whether a choice is to be taken in place of the one before."""
        limit = 1 + _TIE if is_finer else 1 - _GAIN
        return self.typical(choice) < limit * self.typical(before)


def search(candidates: Sequence[Choice], options: Mapping[str, Sequence[str]]) -> Search:
    """Yield choices to train some steps with, take their seconds, and return the result.

        seconds = None
        while True:
            choice = searched.send(seconds)     # StopIteration at the end, its value is Tuned
            seconds = ...                       # equal on all ranks, so that all choose alike

    Args:
        candidates: choices of whole candidates, the finest first.
        options: settings of each part, the finest first.
    """
    times, exact = _Times(), candidates[0]
    yield exact  # not counted: a training's first steps are slower than what follows
    yield from times.measure(*candidates)
    fastest = min(map(times.typical, candidates))
    contenders = [c for c in candidates if times.typical(c) <= _CONTENDER * fastest]
    if len(contenders) > 1:
        yield from times.measure(*reversed(contenders))
    best = contenders[0]
    for candidate in contenders[1:]:
        if times.pays(candidate, best, is_finer=False):
            best = candidate
    for part in PARTS:
        best = yield from _search_part(part, best, contenders, options[part], times)
    if best != exact and times.typical(exact) <= _FAR * times.typical(best):
        fresh = _Times()
        yield from fresh.measure(exact, best, best, exact)
        best = best if fresh.pays(best, exact, is_finer=False) else exact
    return Tuned(best, {choice: times.typical(choice) for choice in times.steps})


def _search_part(
    part: str, best: Choice, contenders: Sequence[Choice], options: Sequence[str], times: _Times
) -> Generator[Choice, Sequence[float], Choice]:
    """Return the best choice with one part set in the way that pays most.

    Args: contenders: candidates whose settings are tried.  options: the part's, the finest first.
    """
    wanted = {getattr(contender, part) for contender in contenders}
    for option in options:
        # Names are not Literals here, and an option is one of the part's.
        changes: dict[str, Any] = {part: option}
        choice, now = replace(best, **changes), getattr(best, part)
        if option not in wanted or choice == best:
            continue
        yield from times.measure(choice)
        if abs(times.typical(choice) / times.typical(best) - 1) < _CLOSE:
            yield from times.measure(best, choice)
        if times.pays(choice, best, is_finer=options.index(option) < options.index(now)):
            best = choice
    return best
