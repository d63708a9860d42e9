"""ZionEX (Mudigere et al. 2021): what the paper claims, and what of it holds here.

  python examples/papers/zionex.py --show
  python examples/papers/zionex.py --parts four lookups
  python examples/papers/zionex.py --parts trainings --data train.txt --seeds 4 --jobs 2
  python examples/papers/zionex.py --parts repeats --out runs/papers/zionex

Tables sharded by table, row, column and data in one model; 16 bits on the wire; two hops, inside a
node and between nodes; runs with equal bits. A measurement is a line in --out, a training a record;
after Ctrl-C give the command again. Other options are those of examples/criteo/train.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "criteo")]

from examples.papers.benches import BenchPart  # noqa: E402
from examples.papers.command import main  # noqa: E402
from examples.papers.measurements import MeasuredPart  # noqa: E402
from examples.papers.parts import RESULTS, Paper  # noqa: E402
from examples.papers.sharded import cases, two_hops, verdicts  # noqa: E402
from examples.papers.trainings import TrainingPart  # noqa: E402
from trec_qcomm import Config  # noqa: E402
from trec_qcomm.config import load_preset  # noqa: E402

RECORDS, CRITEO = RESULTS / "zionex", ROOT / "examples" / "criteo"


def _configs() -> Mapping[str, Config]:
    """Return the config whose losses are compared with float32's, by name."""
    return {"fp16_bf16": load_preset("fp16_bf16")}


PAPER = Paper(
    "zionex",
    "ZionEX (Mudigere et al. 2021)",
    (
        MeasuredPart(
            name="four",
            title="four shardings in one model, beside TorchRec alone; 10 s",
            cases=cases.four_cases,
            decide=verdicts.four,
            committed=RECORDS / "four.jsonl",
        ),
        MeasuredPart(
            name="repeats",
            title="each config with each sharding, twice, at 2 and 3 ranks; 8 min",
            cases=cases.repeat_cases,
            decide=verdicts.repeats,
            committed=RECORDS / "repeats.jsonl",
        ),
        MeasuredPart(
            name="lookups",
            title="lookups whose rows are FP16 or BF16; 5 s",
            cases=cases.lookup_cases,
            decide=verdicts.lookups,
            committed=RECORDS / "lookups.jsonl",
        ),
        MeasuredPart(
            name="planner",
            title="the planner's placement beside two others, from records of make bench-net; 0 s",
            cases=cases.planner_cases,
            decide=verdicts.planner,
            committed=RECORDS / "planner.jsonl",
        ),
        TrainingPart(
            name="trainings",
            title="16 bits on the wire beside float32; 1 h",
            configs=_configs,
            decide=verdicts.trainings,
            seeds=50,
            words=("--min-count", "1"),
            committed=CRITEO / "results" / "dense.jsonl",
        ),
        TrainingPart(
            name="by_node",
            title="rows and dense gradients in two hops beside float32; 20 min",
            configs=two_hops.configs,
            decide=two_hops.losses,
            seeds=16,
            words=two_hops.WORDS,
            committed=RECORDS / "by_node.jsonl",
        ),
        BenchPart(
            name="between_nodes",
            title="bytes between nodes; make bench-net measures them, this command does not",
            decide=two_hops.bytes_between,
            committed=ROOT / "examples" / "bench" / "results" / "clusters.jsonl",
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(PAPER, __doc__))
