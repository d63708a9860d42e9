"""Dynamic communication thresholding (Gupta et al. 2021): what it claims, and what holds here.

  python examples/papers/dct.py --show
  python examples/papers/dct.py --parts lives --data train.txt --jobs 2
  python examples/papers/dct.py --seeds 2 --rows 4096 --out runs/papers/toy

Data parallel: only dense gradients above a threshold are sent, the others wait. Model parallel:
only the largest columns of each row are sent, and only their gradients come back. A run is one
record in --out; after Ctrl-C give the command again. Options that this script does not know are
those of examples/criteo/train.py; without --data the rows are synthetic and the figures not those
of the table.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "criteo")]

from examples.papers.benches import BenchPart  # noqa: E402
from examples.papers.command import main  # noqa: E402
from examples.papers.measured import activations, scopes, threshold_time, traffic  # noqa: E402
from examples.papers.measurements import MeasuredPart  # noqa: E402
from examples.papers.parts import RESULTS, Paper  # noqa: E402
from examples.papers.thresholds import configs, errors, losses  # noqa: E402
from examples.papers.trainings import TrainingPart  # noqa: E402

CRITEO = ROOT / "examples" / "criteo" / "results"
OURS = RESULTS / "dct"
ROWS = ("--min-count", "1")
NUM_SEEDS = 4  # of what is measured without a training

PAPER = Paper(
    "dct",
    "Dynamic communication thresholding (Gupta et al. 2021)",
    (
        TrainingPart(
            name="data_parallel",
            title="1 % and .1 % of the dense gradients; 25 min",
            configs=configs.data_parallel,
            decide=losses.data_parallel,
            seeds=16,
            words=ROWS,
            committed=CRITEO / "dense.jsonl",
        ),
        TrainingPart(
            name="descent",
            title="1 % of them under plain gradient descent; 20 min",
            configs=configs.one_percent,
            decide=losses.descent,
            seeds=16,
            words=(*ROWS, "--dense-optimizer", "sgd", "--dense-lr", "0.3"),
            committed=CRITEO / "sgd.jsonl",
        ),
        TrainingPart(
            name="lives",
            title="a threshold that is used for 1 to 1000 steps, and others of equal bytes; 1 h",
            configs=configs.lives,
            decide=losses.lives,
            seeds=16,
            words=ROWS,
            committed=OURS / "lives.jsonl",
        ),
        TrainingPart(
            name="warm_up",
            title="1 % after a density that falls to it from 25 %; 45 min",
            configs=configs.warm_up,
            decide=losses.warm_up,
            seeds=16,
            words=ROWS,
            committed=OURS / "warm_up.jsonl",
        ),
        TrainingPart(
            name="scope_losses",
            title="1 % of all layers together against 1 % of each; 20 min",
            configs=configs.scopes,
            decide=losses.scopes,
            seeds=16,
            words=ROWS,
            committed=OURS / "scope_losses.jsonl",
        ),
        TrainingPart(
            name="model_parallel",
            title="the largest columns of each row, half of them to a sixteenth; 45 min",
            configs=configs.model_parallel,
            decide=losses.model_parallel,
            seeds=16,
            words=ROWS,
            committed=CRITEO / "dense.jsonl",
        ),
        TrainingPart(
            name="row_thresholds",
            title="a threshold of each table's rows against columns of each row; 20 min",
            configs=configs.row_thresholds,
            decide=losses.row_thresholds,
            seeds=16,
            words=ROWS,
            committed=OURS / "row_thresholds.jsonl",
        ),
        TrainingPart(
            name="hybrid",
            title="both at once; 20 min",
            configs=configs.hybrid,
            decide=losses.hybrid,
            seeds=16,
            words=ROWS,
            committed=OURS / "hybrid.jsonl",
        ),
        MeasuredPart(
            name="bytes",
            title="times less communication, counted; 1 min",
            cases=lambda request: traffic.cases(configs.counted()),
            decide=errors.bytes_sent,
            committed=OURS / "bytes.jsonl",
        ),
        MeasuredPart(
            name="sent",
            title="times fewer bytes of gradients in a training of those above; 6 min",
            cases=lambda request: traffic.cases(configs.trained(), (*ROWS, *request.words)),
            decide=errors.sent,
            committed=OURS / "sent.jsonl",
        ),
        MeasuredPart(
            name="time",
            title="time that finding a threshold takes; some seconds",
            cases=lambda request: threshold_time.cases(),
            decide=errors.time_of_thresholds,
            committed=OURS / "time.jsonl",
        ),
        MeasuredPart(
            name="scopes",
            title="one threshold for each layer, or for all; half a minute",
            cases=lambda request: scopes.cases(request.seeds or NUM_SEEDS),
            decide=errors.scopes,
            committed=OURS / "scopes.jsonl",
        ),
        MeasuredPart(
            name="neurons",
            title="sparsify_activation between pipeline stages; some seconds",
            cases=lambda request: activations.cases(request.seeds or NUM_SEEDS),
            decide=errors.neurons,
            committed=OURS / "neurons.jsonl",
        ),
        BenchPart(
            name="links",
            title="step time on networks; make bench-net measures it, this command does not",
            decide=errors.links,
            committed=ROOT / "examples" / "bench" / "results" / "net.jsonl",
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(PAPER, __doc__))
