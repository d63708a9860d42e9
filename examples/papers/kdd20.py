"""Quantized collectives (Yang et al. 2020): what the paper claims, and what of it holds here.

  python examples/papers/kdd20.py --show
  python examples/papers/kdd20.py --parts optimizers --data train.txt --jobs 2
  python examples/papers/kdd20.py --seeds 2 --rows 4096 --out runs/papers/toy

The all-to-all (forward, backward, both) and the dense all-reduce (ring, recursive doubling) in 8, 4
and 2 bits, with and without the error that is carried forward. A run is one record in --out; after
Ctrl-C give the command again. Options that this script does not know are those of
examples/criteo/train.py; without --data the rows are synthetic and the figures not those of the
table.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "criteo")]

from emulation.dense_configurations import configurations  # noqa: E402

from examples.papers.claims import Claim  # noqa: E402
from examples.papers.command import main  # noqa: E402
from examples.papers.parts import Paper  # noqa: E402
from examples.papers.trainings import Judged, TrainingPart  # noqa: E402
from trec_qcomm import Config  # noqa: E402

ADAM = "DLRM, dim 16, Adam and row-wise Adagrad, 4 ranks x 128"


def _collectives() -> Mapping[str, Config]:
    """Return the configs of the all-to-all and of the all-reduce by name."""
    wanted = ("a2a_", "ring_", "recursive_doubling_")
    return {name: config for name, config in configurations().items() if name.startswith(wanted)}


def _four_bits(judged: Judged) -> list[Claim]:
    """Decide the headline: all three collectives in 4 bits without loss."""
    ...


PAPER = Paper(
    "kdd20",
    "Quantized collectives (Yang, Park, Sridharan, Tang 2020)",
    (
        TrainingPart(
            name="collectives",
            title="every collective in 8, 4 and 2 bits, with and without feedback; 18 h",
            configs=_collectives,
            decide=_four_bits,
            seeds=50,
            words=("--min-count", "1"),
            committed=ROOT / "examples" / "criteo" / "results" / "dense.jsonl",
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(PAPER, __doc__))
