"""A codec for every table of the Criteo model, within a budget of loss: trec_qcomm.search.

  python examples/criteo/studies/search.py --data train.txt --budget-ne 0.02 --out plan.yaml
  python examples/criteo/studies/search.py --data train.txt --link-gb-s 0.0125

Trainings are those of accuracy.py: emulated ranks, 4 x 128, every category kept. What is not
searched is from --base (default best, so dense gradients are those of best).
Records are in --path; after Ctrl-C give the command again. Seeds are from 1000 on: accuracy.py's 0
to 49 are left to judge the plan by:

  python examples/criteo/studies/accuracy.py --configs plan.yaml --data train.txt --out runs/gate

The options of data and model are those of accuracy.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from model import ModelConfig

from studies.emulation import EmulatedTrainer, tables
from trec_qcomm.lab.search.command import main
from trec_qcomm.lab.study import EVALUATION


def criteo(words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of trec_qcomm.search that are the model's.

    Args: words: options of data and model.
    Raises: ValueError naming the option that is wrong.
    """
    train = EmulatedTrainer.from_words(words)
    return {
        "train": train,
        "metrics": ["logloss", "progressive_logloss"],
        "evaluation": {"ne": EVALUATION},
        "base": "best",
        "dims": dict.fromkeys(tables(), ModelConfig.from_options(train.options).embedding_dim),
        "setup": train.setup,
        "num_ranks": train.options.ranks,
    }


if __name__ == "__main__":
    sys.exit(main(make=criteo, description=__doc__))
