"""Schedules: multipliers that fall from c to 1 in the first T steps.

    m(0) = c >= m(t) >= m(t + 1) >= 1,  m(t) = 1 from t = T on;  c is `start`, T is `end_step`

They multiply an error bound, or the density of what is sent. A large bound does the least harm
while the embeddings still move far in every step.

    schedule: {kind: step, start: 2, end_step: 65536, num_stairs: 10}

Knows: numbers. Does not know: tables, codecs, YAML files. A schedule is a pure function of the
step, so it has no state to save. m is float64 and has no unit; steps are counted from 0.
Source: SC'24 (Feng, Zhang et al.), iteration-wise adaptation, c = 2 and T = 65,536. From its
published artefact, for c = 2: the logarithm is log2(1 + t/T), the stairs are a tenth each, and the
last stair, down to 1, is at T. The artefact's `constant` is `drop` here. Other c are ours: the same
curves, stretched to reach from c to 1. `exponential` is the density of Deep Gradient Compression
(Lin et al. 2018), by the step in place of the epoch.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from trec_qcomm.codecs import ErrorBounded
from trec_qcomm.config.section import Section
from trec_qcomm.core.fields import Range, check_fields, read
from trec_qcomm.integration.tolerances import TableTolerance

_Count = Annotated[int, Range(1, 2**63 - 1)]
_StepNumber = Annotated[int, Range(0, 2**63 - 1)]


@dataclass(frozen=True, kw_only=True)
class Schedule(Section, ABC):
    """Multiplier m of an error bound or a density over a training, by the step t.

    It is c (`start`) at step 0, falls, and is 1 from step T (`end_step`) on. With an error bound of
    mode `rel`, `start` times the bound must be below 1. A kind may be given by its name alone.
    """

    @abstractmethod
    def multiplier(self, step: int) -> float:
        """Return m(step) >= 1, float64. Raises ValueError if step is not an integer >= 0."""

    def check(self, owner: Any) -> None:
        forward = owner.forward
        if not isinstance(forward, ErrorBounded):
            raise ValueError("schedule: only forward {codec: error_bounded} has an error bound")
        if forward.mode == "rel":
            largest = forward.bound if owner.classes is None else owner.classes.loose
            first = largest * self.multiplier(0)
            if first >= 1:
                raise ValueError(f"schedule: start times the bound is {first:g}; allowed: below 1")

    def table_tolerance(self) -> "_Scheduled":
        return _Scheduled(self)


class _Scheduled(TableTolerance):
    """Error bound of a table times a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def tolerance(self, given: float, step: int) -> float:
        return given * self._schedule.multiplier(step)


@dataclass(frozen=True)
class Constant(Schedule):
    """Schedule m = 1: the number is the same in every step. It has no fields."""

    name: ClassVar[str] = "constant"

    def multiplier(self, step: int) -> float:
        read(_StepNumber, step, "step")
        return 1.0


@dataclass(frozen=True, kw_only=True)
class _Decay(Schedule):
    """Schedule that falls from `start` to 1 at `end_step`.

    Args: start: c; a larger one is coarser at first.  end_step: T, the step from which
        the number is not multiplied.
    """

    start: Annotated[float, Range(1)] = 2.0
    end_step: _Count = 65_536

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    def multiplier(self, step: int) -> float:
        read(_StepNumber, step, "step")
        return max(1.0, self._before_end(step)) if step < self.end_step else 1.0

    @abstractmethod
    def _before_end(self, step: int) -> float:
        """Return m(step), step < T; where rounding makes it less than 1, 1 is meant."""


class Exponential(_Decay):
    """Schedule m = c^(1 - t/T): each step divides m by the same factor."""

    name: ClassVar[str] = "exponential"

    def _before_end(self, step: int) -> float:
        return float(self.start ** (1 - step / self.end_step))


class _Stretched(_Decay):
    """Schedule of a curve from 0 to 1, stretched to reach from c to 1."""

    def _before_end(self, step: int) -> float:
        # Where c is so large that c - 1 rounds to c, it ends at 0.
        return self.start - (self.start - 1.0) * self._descent(step)

    @abstractmethod
    def _descent(self, step: int) -> float:
        """Return the share of the way from c to 1 that is done at step: 0..1, not decreasing."""


class Linear(_Stretched):
    """Schedule m = c - (c - 1) t/T: each step lowers m by the same amount."""

    name: ClassVar[str] = "linear"

    def _descent(self, step: int) -> float:
        return step / self.end_step


class Log(_Stretched):
    """Schedule m = c - (c - 1) log2(1 + t/T), which at first falls 1.44 times as fast as linear."""

    name: ClassVar[str] = "log"

    def _descent(self, step: int) -> float:
        return math.log2(1 + step / self.end_step)


@dataclass(frozen=True, kw_only=True)
class Step(_Stretched):
    """Schedule m = c - (c - 1) floor(n t/T) / n: n equal stairs, the first at T/n, the last at T.

    Args: num_stairs: n, the number of equal stairs of kind `step`.
    """

    num_stairs: _Count = 10

    name: ClassVar[str] = "step"

    def _descent(self, step: int) -> float:
        return (self.num_stairs * step // self.end_step) / self.num_stairs


class Drop(_Stretched):
    """Schedule m = c before T, then 1."""

    name: ClassVar[str] = "drop"

    def _descent(self, step: int) -> float:
        return 0.0


Schedule.kinds = {kind.name: kind for kind in (Constant, Linear, Log, Step, Drop, Exponential)}
