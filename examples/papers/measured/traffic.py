"""Bytes that a config sends, counted by `stats()` over a short emulated training.

Knows: the trainings of examples/criteo on synthetic rows. Does not know: codecs, papers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from examples.papers.measurements import Values
from trec_qcomm import Config

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "examples" / "criteo")]  # whose scripts import by name

NUM_STEPS = 20
WORDS = (
    *("--ranks", "2", "--batch-size", "256", "--rows", "16384", "--steps", str(NUM_STEPS)),
    *("--embedding-dim", "64", "--dense-arch", "512-64"),
)
SETTING = f"DLRM, dim 64, synthetic rows, 2 ranks x 256, {NUM_STEPS} steps, headers included"


def cases(
    configs: Mapping[str, Config], words: tuple[str, ...] = WORDS
) -> Mapping[str, Callable[[], Values]]:
    """Return the measurements by name of a config: times fewer bytes than float32.

    Args: words: options of train.py for the training.
    """
    return {name: partial(ratios, config, words) for name, config in configs.items()}


def ratios(config: Config, words: tuple[str, ...] = WORDS) -> Values:
    """Return how many times fewer bytes the dense gradients and the rows both ways take."""
    from emulation.client import EmulatedTrainer

    model = EmulatedTrainer.from_words(words)(config, 0, 0.0)
    stats = [trainer.qcomm.stats() for trainer in model.trainers]
    by_kind = {
        "dense": [s.dense for s in stats],
        "forward": [s.embedding_forward for s in stats],
        "backward": [s.embedding_backward for s in stats],
    }
    by_kind["rows"] = by_kind["forward"] + by_kind["backward"]
    return {
        kind: sum(s.raw_nbytes for s in sent) / wire
        for kind, sent in by_kind.items()
        if (wire := sum(s.wire_nbytes for s in sent))
    }
