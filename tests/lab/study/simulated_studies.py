"""Simulated studies of quality, with the noise of the recorded one: how often a verdict is wrong.

  python -m tests.lab.study.simulated_studies 1800        the table of trec_qcomm/docs/QUALITY.md
  python -m tests.lab.study.simulated_studies 1800 threshold_0.01        the noise of one config

A simulated study draws 50 seeds, with replacement, of a recorded configuration of 50 seeds whose
changes were shifted to the true mean that is simulated. Both losses of a seed stay together.
"""

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from trec_qcomm.lab.records import Limits, StudyRecord, read
from trec_qcomm.lab.study.gates import TRAINING, gate, looks_of, sequential_gate
from trec_qcomm.lab.study.paired import Change, percent

Recorded = dict[str, list[StudyRecord]]  # by configuration, those with 50 trainings
Pairs = Sequence[tuple[float, float]]  # changes of both losses, seed by seed

RESULTS = Path(__file__).parents[3] / "examples" / "criteo" / "results" / "dense.jsonl"
LOSSES = {"logloss": TRAINING, "progressive_logloss": TRAINING}
NOISES = (
    "int8", "int4", "int2", "dense_float6", "best_dense_float6", "ring_int4", "ring_int8",
    "best_dense_int8", "dct",
)  # fmt: skip
NUM_SEEDS = 50


@dataclass
class Count:
    """Verdicts of many studies. Args: whole: how many pass with all seeds. seeds: their sum."""

    passed: int = 0
    failed: int = 0
    whole: int = 0
    seeds: int = 0


def recorded_study() -> Recorded:
    """Return the recorded study, without configurations of fewer seeds."""
    by_name: Recorded = {}
    for record in read(RESULTS):
        if isinstance(record, StudyRecord) and record.training:
            by_name.setdefault(record.configuration, []).append(record)
    return {name: group for name, group in by_name.items() if len(group) == NUM_SEEDS}


def noise_of(recorded: Recorded, name: str) -> Pairs:
    """Return the changes of each seed in percent, with means of zero."""
    base = {r.seed: r.training for r in recorded["fp32"]}
    columns = []
    for loss in LOSSES:
        changes = [
            percent(r.training.all_metrics[loss], base[r.seed].all_metrics[loss])
            for r in recorded[name]
        ]
        columns.append([change - fmean(changes) for change in changes])
    return list(zip(*columns, strict=True))


def count(
    recorded: Recorded,
    means: tuple[float, float],
    *,
    num_studies: int,
    limits: Mapping[str, Limits] = LOSSES,
    names: Sequence[str] = NOISES,
    with_whole: bool = False,
) -> Count:
    """Return the verdicts of simulated studies whose true changes are these."""
    generator, result = random.Random(0), Count()
    noises = [noise_of(recorded, name) for name in names]
    for number in range(num_studies):
        drawn = zip(*generator.choices(noises[number % len(noises)], k=NUM_SEEDS), strict=True)
        changes = {
            loss: [value + mean for value in column]
            for loss, mean, column in zip(LOSSES, means, drawn, strict=True)
        }
        changes = {loss: changes[loss] for loss in limits}
        verdict = sequential_gate(changes, limits, looks_of(NUM_SEEDS))
        result.passed += verdict.passed
        result.failed += verdict.text.startswith("FAIL")
        result.seeds += verdict.num_seeds
        if with_whole:
            summed = {loss: Change.from_percents(values) for loss, values in changes.items()}
            result.whole += gate(summed, limits) == "PASS"
    return result


def main() -> None:
    """Print the table."""
    num_studies, recorded = int(sys.argv[1]), recorded_study()
    names = sys.argv[2:] or NOISES
    print("| true change of test; progressive | PASS | FAIL | seeds | PASS, always 50 seeds |")
    print("|---|---|---|---|---|")
    for means in ((0.0, 0.0), (0.02, 0.02), (0.03, 0.0), (0.05, 0.0), (0.05, 0.05), (0.1, 0.0)):
        c = count(recorded, means, num_studies=num_studies, names=names, with_whole=True)
        passed, failed, whole = (100 * x / num_studies for x in (c.passed, c.failed, c.whole))
        seeds = c.seeds / num_studies
        print(
            f"| +{means[0]:.2f}; +{means[1]:.2f} | {passed:.1f} % | {failed:.1f} % | {seeds:.1f} "
            f"| {whole:.1f} % |"
        )


if __name__ == "__main__":
    main()
