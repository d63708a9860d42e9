"""Recorded runs made by hand: plausible figures with noise, and faults planted from a step on."""

import dataclasses
import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path

from trec_qcomm.lab import records
from trec_qcomm.lab.debug.recorded import DebugRun
from trec_qcomm.lab.records import DebugRecord

RANKS = range(2)
STEPS = range(0, 100, 5)
TABLES = ("t_0", "t_1", "t_2")
PARAMETER = "over.0.weight"
FORWARD, BACKWARD = "ErrorBounded(bound=0.01)", "Rowwise(bits=2, rounding='stochastic')"
Fault = Callable[[DebugRecord], DebugRecord]


def records_of(*, seed: int = 0, exact: bool = False, steps: range = STEPS) -> list[DebugRecord]:
    """Return a run's records, all figures with a noise of their place. Seeds differ in the noise.

    Args: exact: whether all arrives as it is.
    """
    made = []
    for place, (name, direction, site) in enumerate(_places()):
        for step in steps:
            for rank in RANKS:
                noise = random.Random(f"{seed} {place} {step} {rank}")
                scatter = 0.02 * (1 + place % 3)
                made.append(_record(rank, step, name, direction, site, noise, scatter, exact))
    return made


def _places() -> Iterable[tuple[str, str, str | None]]:
    for table in TABLES:
        yield table, "forward", None
        yield table, "backward", None
    yield PARAMETER, "dense", "contribution"
    yield PARAMETER, "residual", "contribution"


def _record(
    rank: int, step: int, name: str, direction: str, site: str | None,
    noise: random.Random, scatter: float, exact: bool,
) -> DebugRecord:  # fmt: skip
    size = {"forward": 0.1, "backward": 1e-5, "dense": 1e-3, "residual": 1e-4}[direction]
    rms = size * math.exp(noise.gauss(0, scatter))
    if direction == "residual":
        return DebugRecord(
            configuration="made", rank=rank, step=step, name=name, direction="residual",
            codec=BACKWARD, site=site, num_rows=10, num_values=80, num_nan=0, num_inf=0, rms=rms,
            residual_over_gradient=0.3 * math.exp(noise.gauss(0, scatter)),
        )  # fmt: skip
    return DebugRecord(
        configuration="made", rank=rank, step=step, name=name, direction=direction,  # type: ignore[arg-type]
        codec="Identity()" if exact else FORWARD if direction == "forward" else BACKWARD,
        site=site, num_rows=100, num_values=800, num_nan=0, num_inf=0, num_broken=0, rms=rms,
        snr_db=None if exact else {"forward": 28.0, "backward": 12.0}.get(direction, 20.0)
        + noise.gauss(0, scatter),
        tolerance=0.01 if direction == "forward" and not exact else None,
        lost_share=0.0 if exact else 0.1 + 0.1 * noise.gauss(0, scatter),
        bits=32.0 if exact else 6.0 + noise.gauss(0, scatter),
        peak=2.0 * math.exp(noise.gauss(0, scatter)),
    )  # fmt: skip


def made_run(*faults: Fault, seed: int = 0, exact: bool = False, steps: range = STEPS) -> DebugRun:
    """Return a run with faults."""
    made = records_of(seed=seed, exact=exact, steps=steps)
    for fault in faults:
        made = [fault(record) for record in made]
    return DebugRun(f"seed{seed}", made)


def write_run(folder: Path, run: DebugRun) -> Path:
    """Write the records of a run as its ranks would."""
    for record in run.records:
        records.append(folder / f"debug-rank{record.rank}.jsonl", record)
    return folder


def planted(name: str, direction: str, step: int, **changes: object) -> Fault:
    """Return a fault: figures of one place that change from a step on.

    Args: changes: values by name of the figure, or functions of the record that return one.
    """

    def fault(record: DebugRecord) -> DebugRecord:
        if (record.name, record.direction) != (name, direction) or record.step < step:
            return record
        values = {
            key: value(record) if callable(value) else value for key, value in changes.items()
        }
        return dataclasses.replace(record, **values)  # type: ignore[arg-type]

    return fault
