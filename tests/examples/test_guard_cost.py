"""guard_cost.py: costs are medians over cycles, in training steps, and all steps of 200 count."""

from argparse import Namespace

import guard_cost


def test_costs_are_in_training_steps() -> None:
    course = guard_cost._Course(Namespace(probes=1, probe_size=None, parts=4))
    warm = dict.fromkeys(("plain", "looked at", "probe", "counter"), 100.0)
    cycle = {"plain": 3 * 2.0, "looked at": 2.5, "probe": 3.0, "counter": 3 * 0.002}
    late = {name: 10 * seconds for name, seconds in cycle.items()}
    course._seconds = [warm, warm, cycle, cycle, late]
    share = 100 * (0.25 + 1.5 + 199 * 0.001) / 200
    assert course.row(512) == f"| 1 | 512 | 4 | 0.25 | 1.50 | 0.0010 | {share:.2f} % |"
