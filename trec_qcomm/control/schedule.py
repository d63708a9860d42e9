"""Schedules: multipliers that fall from c to 1 in the first T steps.

    m(0) = c >= m(t) >= m(t + 1) >= 1,  m(t) = 1 from t = T on;  c is `start`, T is `end_step`

They multiply an error bound, since a large bound does the least harm while the embeddings still
move far in every step, or the density of what is sent.

    schedule: {kind: step, start: 2, end_step: 65536, num_stairs: 10}

Knows: numbers. Does not know: tables, codecs, YAML files. A schedule is a pure function of the
step, so it has no state to save. m is float64 and has no unit; steps are counted from 0.
Source: SC'24 (Feng, Zhang et al.), iteration-wise adaptation, c = 2 and T = 65,536. From its
published artefact, for c = 2: the logarithm is log2(1 + t/T), the stairs are a tenth each, and the
last stair, down to 1, is at T. What is called constant there is `drop` here. Other c are ours: the
same curves, stretched to reach from c to 1. `exponential` is that of the density in Deep Gradient
Compression (Lin et al. 2018), by the step in place of the epoch.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from trec_qcomm.core.codec import check_choice


class Schedule(ABC):
    """Multiplier of a number over a training. It is frozen; its fields are its config."""

    name: ClassVar[str]  # the word after `kind` in YAML

    @abstractmethod
    def multiplier(self, step: int) -> float:
        """Return m(step) >= 1, float64. Raises ValueError: step is not an integer >= 0."""


@dataclass(frozen=True)
class Constant(Schedule):
    """Schedule m = 1: the number is the same in every step."""

    name: ClassVar[str] = "constant"

    def multiplier(self, step: int) -> float:
        _check_int("step", step, at_least=0)
        return 1.0


@dataclass(frozen=True, kw_only=True)
class _Decay(Schedule):
    """Schedule that falls from `start` to 1 at `end_step`.

    Args: start: c >= 1, finite; a larger one is coarser at first.  end_step: T, 1..2^63 - 1.
    """

    start: float = 2.0
    end_step: int = 65_536

    def __post_init__(self) -> None:
        if type(self.start) not in (int, float) or not 1 <= self.start < math.inf:
            raise ValueError(f"{self.name}.start: {self.start!r} is not a finite number >= 1")
        _check_int(f"{self.name}.end_step", self.end_step, at_least=1)

    def multiplier(self, step: int) -> float:
        _check_int("step", step, at_least=0)
        return max(1.0, self._before_end(step)) if step < self.end_step else 1.0

    @abstractmethod
    def _before_end(self, step: int) -> float:
        """Return m(step), step < T; where rounding makes it less than 1, 1 is meant."""


class Exponential(_Decay):
    """Schedule m = c^(1 - t/T): the same factor down each time."""

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
    """Schedule m = c - (c - 1) t/T: the same step down each time."""

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

    Args: num_stairs: n, 1..2^63 - 1.
    """

    num_stairs: int = 10

    name: ClassVar[str] = "step"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_int("step.num_stairs", self.num_stairs, at_least=1)

    def _descent(self, step: int) -> float:
        return (self.num_stairs * step // self.end_step) / self.num_stairs


class Drop(_Stretched):
    """Schedule m = c before T, then 1."""

    name: ClassVar[str] = "drop"

    def _descent(self, step: int) -> float:
        return 0.0


SCHEDULES: dict[str, type[Schedule]] = {
    kind.name: kind for kind in (Constant, Linear, Log, Step, Drop, Exponential)
}


def schedule_from_dict(data: object, *, where: str = "schedule") -> Schedule:
    """Return the schedule that {kind: a name in SCHEDULES, and its fields} describes.

    Raises: ValueError naming the field under `where` and the allowed values.
    """
    choices = ", ".join(SCHEDULES)
    if not isinstance(data, Mapping) or "kind" not in data:
        raise ValueError(f"{where}: expected {{kind: one of {choices}, ...}}, got {data!r}")
    check_choice(f"{where}.kind", data["kind"], tuple(SCHEDULES))
    schedule_type: type[Any] = SCHEDULES[data["kind"]]
    known = [field.name for field in fields(schedule_type)]
    options = {key: value for key, value in data.items() if key != "kind"}
    for key in options:
        if key not in known:
            raise ValueError(f"{where}.{key}: unknown key; allowed: {', '.join(['kind', *known])}")
    try:
        schedule: Schedule = schedule_type(**options)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return schedule


def schedule_to_dict(schedule: Schedule) -> dict[str, Any]:
    """Return the inverse of `schedule_from_dict`: a dict with all fields, ready for YAML."""
    options = {f.name: getattr(schedule, f.name) for f in fields(schedule)}  # type: ignore[arg-type]
    return {"kind": schedule.name, **options}


def _check_int(where: str, value: object, *, at_least: int) -> None:
    if type(value) is not int or not at_least <= value < 2**63:
        raise ValueError(f"{where}: {value!r} is not an integer in {at_least}..2^63 - 1")
