"""Dual-level adaptive error bounds (Feng, Zhang et al., SC'24): the claims, and what holds here.

  python examples/papers/sc24.py --show
  python examples/papers/sc24.py --show --report runs/sc24.html
  python examples/papers/sc24.py --parts ratio classes --data train.txt
  python examples/papers/sc24.py --rows 8192 --seeds 2 --out runs/papers/toy

The artefact's setting: forward alone, every row sent, dim 32 and batch 128, SGD .1. All parts but
the last measure the rows of one training each with SGD and Adagrad; --data names the rows to train
on, without it they are synthetic and the figures not those of the table. A measurement is a line in
--out; after Ctrl-C give the command again. Other options are those of examples/criteo/train.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "criteo")]

from examples.papers.benches import BenchPart  # noqa: E402
from examples.papers.command import main  # noqa: E402
from examples.papers.dual_level import cases, figures, forward, schedules, verdicts  # noqa: E402
from examples.papers.dual_level.setting import MODEL  # noqa: E402
from examples.papers.measurements import MeasuredPart  # noqa: E402
from examples.papers.parts import RESULTS, Paper  # noqa: E402
from examples.papers.trainings import TrainingPart  # noqa: E402

RECORDS = RESULTS / "sc24"

PAPER = Paper(
    "sc24",
    "Dual-level adaptive error bounds (Feng, Zhang et al., SC'24)",
    (
        MeasuredPart(
            name="ratio",
            title="compression ratio by encoder, with and without distinct bags; 1 min",
            cases=cases.ratio_cases,
            decide=verdicts.ratio,
            committed=RECORDS / "ratio.jsonl",
        ),
        MeasuredPart(
            name="classes",
            title="which tables the homogenization index makes tight or loose; 1 min",
            cases=cases.class_cases,
            decide=verdicts.classes,
            committed=RECORDS / "classes.jsonl",
        ),
        MeasuredPart(
            name="encoders",
            title="the encoder of each table by modelled speed-up, on four links; 2 min",
            cases=cases.encoder_cases,
            decide=verdicts.encoders,
            committed=RECORDS / "encoders.jsonl",
        ),
        BenchPart(
            name="forward",
            title="steps with the forward rows coded; make bench-net measures, this does not",
            decide=forward.speed_up,
            committed=RECORDS / "forward.jsonl",
        ),
        MeasuredPart(
            name="prediction",
            title="whether prediction along rows or columns makes them smaller; 1 min",
            cases=cases.prediction_cases,
            decide=verdicts.prediction,
            committed=RECORDS / "prediction.jsonl",
        ),
        MeasuredPart(
            name="drift",
            title="index, spread and entropy of the rows while the training goes on; 1 min",
            cases=cases.drift_cases,
            decide=verdicts.drift,
            committed=RECORDS / "drift.jsonl",
        ),
        MeasuredPart(
            name="distributions",
            title="index of each table, and how the values of its rows lie; 1 min",
            cases=cases.distribution_cases,
            decide=verdicts.distributions,
            committed=RECORDS / "distributions.jsonl",
        ),
        MeasuredPart(
            name="terabyte",
            title="ratio at the Terabyte set's dim and batch, on the same rows; 2 min",
            cases=cases.terabyte_cases,
            decide=verdicts.terabyte,
            committed=RECORDS / "terabyte.jsonl",
        ),
        TrainingPart(
            name="schedules",
            title="four schedules of the bound beside a constant one of equal bytes; 40 min",
            configs=schedules.configs,
            decide=verdicts.schedules,
            seeds=16,
            words=(*MODEL, "--ranks", "2", "--batch-size", "64"),
            committed=RECORDS / "schedules.jsonl",
        ),
    ),
    figures.draw,
)

if __name__ == "__main__":
    sys.exit(main(PAPER, __doc__))
