"""Error bounds that fall while a training goes on, beside a constant one of equal bytes.

Knows: configs. Does not know: trainings, verdicts. A value takes about log2(1 / bound) bits and a
constant, so schedules of an equal mean of log2(multiplier) over a training send about as much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trec_qcomm import Config, ErrorBounded, Identity, TableRule
from trec_qcomm.ext.dual_level.schedule import Drop, Linear, Log, Schedule, Step

BOUND = 0.03  # the artefact's base
STEPS = 918  # of a training on the rows of the table
MEAN_LOG2 = 0.4  # of the multiplier over a training
CONSTANT = "constant"
KINDS: tuple[type[Linear] | type[Log] | type[Step] | type[Drop], ...] = (Linear, Log, Step, Drop)
FALLING = tuple(kind.name for kind in KINDS)


def configs(num_steps: int = STEPS) -> Mapping[str, Config]:
    """Return by name: a constant bound, and four schedules of about equal bytes.

    Only the rows are coded, all of them: gradients stay exact, and bags are not made distinct.

    Args: num_steps: steps of the training.
    """
    by_name = {kind.name: _config(BOUND, schedule_of(kind, num_steps)) for kind in KINDS}
    return {CONSTANT: _config(BOUND * 2**MEAN_LOG2, None)} | by_name


def schedule_of(kind: type[Schedule], num_steps: int) -> Schedule:
    """Return the schedule from 2 down to 1 whose mean of log2(multiplier) is MEAN_LOG2."""
    low, high = 1, num_steps
    while low < high:  # the mean rises with the step at which the schedule ends
        middle = (low + high) // 2
        if mean_log2(kind(end_step=middle), num_steps) < MEAN_LOG2:  # type: ignore[call-arg]
            low = middle + 1
        else:
            high = middle
    return kind(end_step=low)  # type: ignore[call-arg]


def mean_log2(schedule: Schedule, num_steps: int) -> float:
    """Return the mean of log2(multiplier) over so many steps."""
    return sum(math.log2(schedule.multiplier(step)) for step in range(num_steps)) / num_steps


def _config(bound: float, schedule: Schedule | None) -> Config:
    rule = TableRule(
        tables="*", forward=ErrorBounded(bound), backward=Identity(), schedule=schedule
    )
    return Config(embedding=(rule,))
