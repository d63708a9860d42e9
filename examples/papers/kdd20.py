"""Quantized collectives (Yang et al. 2020): what the paper claims, and what of it holds here.

  python examples/papers/kdd20.py --show
  python examples/papers/kdd20.py --parts together --data train.txt --jobs 2
  python examples/papers/kdd20.py --seeds 2 --rows 4096 --out runs/papers/toy

The all-to-all (forward, backward, both) and the dense all-reduce (ring, recursive doubling) in 8, 4
and 2 bits, with and without the error that is carried forward, by grain and on 4 to 16 ranks. A run
is one record in --out; after Ctrl-C give the command again. Options that this script does not know
are those of examples/criteo/train.py; without --data the rows are synthetic and the figures not
those of the table.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "criteo")]

from examples.papers.collectives import configs, errors, losses  # noqa: E402
from examples.papers.command import main  # noqa: E402
from examples.papers.measured import feedback, grain, ranks  # noqa: E402
from examples.papers.measurements import MeasuredPart  # noqa: E402
from examples.papers.parts import RESULTS, Paper  # noqa: E402
from examples.papers.trainings import TrainingPart  # noqa: E402

CRITEO = ROOT / "examples" / "criteo" / "results"
OURS = RESULTS / "kdd20"
ROWS = ("--min-count", "1")
SEEDS_OF_ERRORS = 4

PAPER = Paper(
    "kdd20",
    "Quantized collectives (Yang, Park, Sridharan, Tang 2020)",
    (
        TrainingPart(
            name="together",
            title="all three collectives in 4 bits at once; 15 min",
            configs=configs.together,
            decide=losses.together,
            seeds=16,
            words=ROWS,
            committed=OURS / "together.jsonl",
        ),
        TrainingPart(
            name="collectives",
            title="each collective in 8, 4 and 2 bits, with and without feedback; 2.5 h",
            configs=configs.collectives,
            decide=losses.collectives,
            seeds=16,
            words=ROWS,
            committed=CRITEO / "dense.jsonl",
        ),
        TrainingPart(
            name="dense_descent",
            title="the all-reduce, the dense layers by plain gradient descent; 45 min",
            configs=configs.all_reduces,
            decide=losses.dense_descent,
            seeds=16,
            words=(*ROWS, "--dense-optimizer", "sgd", "--dense-lr", "0.3"),
            committed=CRITEO / "sgd.jsonl",
        ),
        TrainingPart(
            name="descent",
            title="all three in 4 bits, all parameters by plain gradient descent; 15 min",
            configs=configs.together,
            decide=losses.descent,
            seeds=16,
            words=(
                *(*ROWS, "--dense-optimizer", "sgd", "--dense-lr", "0.3"),
                *("--embedding-optimizer", "sgd", "--lr", "1.0"),
            ),
            committed=OURS / "descent.jsonl",
        ),
        TrainingPart(
            name="grain_losses",
            title="the all-reduce in 4 bits by how many values share a scale; 20 min",
            configs=configs.by_grain,
            decide=losses.grains,
            seeds=16,
            words=ROWS,
            committed=OURS / "grain_losses.jsonl",
        ),
        *(
            TrainingPart(
                name=f"ranks_{num_ranks}",
                title=f"the all-reduce in 4 bits on {num_ranks} ranks; {minutes} min",
                configs=configs.by_algorithm,
                decide=partial(losses.of_ranks, num_ranks=num_ranks),
                seeds=16,
                words=(
                    *(*ROWS, "--ranks", str(num_ranks)),
                    *("--batch-size", str(losses.SAMPLES // num_ranks)),
                ),
                committed=OURS / f"ranks_{num_ranks}.jsonl",
            )
            for num_ranks, minutes in zip(configs.NUM_RANKS, (25, 40), strict=True)
        ),
        TrainingPart(
            name="compensation",
            title="the error of rows and of their gradients carried forward by id; 25 min",
            configs=configs.compensated_rows,
            decide=losses.compensated_rows,
            seeds=6,
            words=ROWS,
            committed=CRITEO / "few_bits.jsonl",
        ),
        MeasuredPart(
            name="telescoping",
            title="what was sent and what is kept are what there was; 1 min",
            cases=lambda request: feedback.cases(),
            decide=errors.telescoping,
            committed=OURS / "telescoping.jsonl",
        ),
        MeasuredPart(
            name="grain",
            title="error of 4 bits by how many values share a scale; 1 min",
            cases=lambda request: grain.cases(request.seeds or SEEDS_OF_ERRORS),
            decide=errors.grains,
            committed=OURS / "grain.jsonl",
        ),
        MeasuredPart(
            name="ranks",
            title="error of the all-reduce on 2 to 64 ranks; 2 min",
            cases=lambda request: ranks.cases(request.seeds or SEEDS_OF_ERRORS),
            decide=errors.by_ranks,
            committed=OURS / "ranks.jsonl",
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(PAPER, __doc__))
