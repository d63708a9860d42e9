"""The test that watches the loss without end: its false trips, and how soon it sees a jump.

Trainings are simulated, each with a seed of its own.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import pytest

from trec_qcomm.lab.guard.readings import Readings, Variance
from trec_qcomm.lab.study.student_t import t_quantile_of_tail

LIMIT = 1.0


@dataclass(frozen=True)
class Noise:
    """Standard deviations of the parts of a change, in limits.

    Args:
        alone: part of one batch in one probe.
        batch: part of a batch that stays.
        probe: part of a probe that all its batches share.
        memory: correlation of that part with the one of the probe before.
    """

    alone: float = 0.0
    batch: float = 0.0
    probe: float = 0.0
    memory: float = 0.0


NOISES = {
    "batches of a probe, 1": Noise(alone=1.0),
    "batches of a probe, 3": Noise(alone=3.0),
    "batches for good, 1": Noise(alone=0.5, batch=1.0),
    "batches for good, 3": Noise(alone=0.5, batch=3.0),
    "probes, 1": Noise(alone=0.2, batch=0.2, probe=1.0),
    "probes with a memory, 1": Noise(alone=0.2, batch=0.2, probe=1.0, memory=0.8),
    "all three, 0.5 each": Noise(alone=0.5, batch=0.5, probe=0.5),
}


def simulated(
    seed: object, noise: Noise, mean: Callable[[int], float], *, num_batches: int = 8
) -> Iterator[list[float]]:
    """Yield readings. Args: mean: true change at a probe, by its number."""
    source = random.Random(repr(seed))
    offsets = [source.gauss(0, noise.batch) for _ in range(num_batches)]
    common, probe = source.gauss(0, noise.probe), 0
    while True:
        center = mean(probe) + common
        yield [center + offset + source.gauss(0, noise.alone) for offset in offsets]
        fresh = (1 - noise.memory**2) ** 0.5 * noise.probe
        common, probe = noise.memory * common + source.gauss(0, fresh), probe + 1


def first_trip(stream: Iterator[list[float]], num_probes: int, raise_after: int = 2) -> int | None:
    """Return the probe that trips first; None where none does."""
    readings = Readings(raise_after)
    for probe, changes in enumerate(islice(stream, num_probes)):
        readings.add(changes)
        if readings.show_above(LIMIT):
            return probe
    return None


LATER = ("batches for good, 3", "probes, 1", "probes with a memory, 1")
SEEN_SOON = [name for name in NOISES if name not in LATER]


@pytest.mark.parametrize("name", NOISES)
def test_a_training_at_half_the_limit_does_not_trip_in_1000_probes(name):
    for seed in range(3):
        stream = simulated(seed, NOISES[name], lambda _: 0.5)
        assert first_trip(stream, 1000) is None


@pytest.mark.parametrize("calm", [20, 500])
@pytest.mark.parametrize("name", SEEN_SOON)
def test_a_jump_to_ten_limits_trips_within_3_probes(name, calm):
    for seed in range(5):
        stream = simulated(seed, NOISES[name], lambda n: 10.0 if n >= calm else 0.0, num_batches=16)
        assert calm <= first_trip(stream, calm + 3) <= calm + 2


def test_all_of_raise_after_readings_must_be_above():
    readings = Readings(3)
    for mean in [0.0] * 20 + [50.0, 50.0]:
        readings.add([mean + b / 10 for b in range(8)])
        assert not readings.show_above(LIMIT)
    readings.add([50.0 + b / 10 for b in range(8)])
    assert readings.show_above(LIMIT)
    readings.add([0.9 + b / 1000 for b in range(8)])
    assert not readings.show_above(LIMIT)  # the mean still is


def test_variances_add_up_with_welch_s_degrees():
    both = Variance(1.0, 5) + Variance(3.0, 9)
    assert both.value == 4.0
    assert both.degrees == pytest.approx(16 / (1 / 5 + 9 / 9))
    assert Variance() + both == both == both + Variance()
    assert both.margin(0.05) == pytest.approx(t_quantile_of_tail(0.05, 13) * 2)
    assert Variance().margin(0.05) == float("inf")


def test_the_interval_holds_the_true_mean():
    """More than 95 % of the intervals do, since one part of the noise counts twice."""
    held = 0
    for seed in range(200):
        readings = Readings(2)
        for changes in islice(
            simulated(seed, Noise(alone=1.0, batch=0.5, probe=0.5), lambda _: 0.3), 12
        ):
            readings.add(changes)
        low, high = readings.estimate().interval
        held += low <= 0.3 <= high
    assert 190 <= held <= 200


def test_noise_of_long_ago_is_forgotten():
    """With the wide noise of the first 100 readings the jump would not be seen at once."""
    source, readings = random.Random(3), Readings(2)
    for n in range(166):
        common = source.gauss(0, 5.0 if n < 100 else 0.1) + (4.0 if n >= 164 else 0.0)
        readings.add([common + source.gauss(0, 0.1) for _ in range(8)])
    assert readings.show_above(LIMIT)
