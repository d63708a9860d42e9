"""Trainings that are watched by a guard, as numbers: what its test makes of known noise.

  python -m tests.lab.guard.decisions.simulated_trainings 100     trainings a cell; minutes
  python -m tests.lab.guard.decisions.simulated_trainings 100 2   the second row of noise alone

The limit is 1. It prints the table of trec_qcomm/docs/GUARD.md.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from trec_qcomm.lab.guard.decisions.readings import Readings

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


def false_trips(noise: Noise, mean: float, num_batches: int, count: int) -> str:
    """Return how many trainings of 1000 probes trip whose true change is `mean` for good."""
    trips = sum(
        first_trip(simulated(seed, noise, lambda _: mean, num_batches=num_batches), 1000)
        is not None
        for seed in range(count)
    )
    return f"{trips}"


def delays(noise: Noise, jump: float, calm: int, num_batches: int, count: int) -> str:
    """Return how many trainings trip within 3 and 20 probes from a jump after a calm."""

    def mean(probe: int) -> float:
        return jump if probe >= calm else 0.0

    probes = []
    for seed in range(count):
        stream = simulated(seed, noise, mean, num_batches=num_batches)
        trip = first_trip(stream, calm + 20)
        probes.append(1000 if trip is None or trip < calm else trip - calm + 1)
    return f"{sum(p <= 3 for p in probes)}, {sum(p <= 20 for p in probes)}"


def main() -> None:
    count = int(sys.argv[1])
    print(
        "| noise, sd in limits | batches | false trips at 0 | at half the limit | at the limit "
        "| x10 after 10 probes | after 300 | x3 after 300 |\n|---|---|---|---|---|---|---|---|"
    )
    chosen = [int(number) - 1 for number in sys.argv[2:]] or range(len(NOISES))
    for name, noise in (list(NOISES.items())[number] for number in chosen):
        for num_batches in (4, 8, 32):
            false = [false_trips(noise, mean, num_batches, count) for mean in (0.0, 0.5, 1.0)]
            seen = [
                delays(noise, jump, calm, num_batches, count)
                for jump, calm in ((10, 10), (10, 300), (3, 300))
            ]
            print(f"| {name} | {num_batches} | {' | '.join([*false, *seen])} |", flush=True)


if __name__ == "__main__":
    main()
