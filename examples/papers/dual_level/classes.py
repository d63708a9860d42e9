"""Classes of tables by the homogenization index, beside what the artefact says of its tables.

Knows: rows of a training, the library's thresholds. Does not know: codecs, verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from examples.bench.codecs.workload import Batch, merged
from examples.papers.dual_level.ratio import CLASSES
from trec_qcomm.ext.dual_level.error_bound import BoundClass
from trec_qcomm.ext.dual_level.homogenization import mean_index

SMALL = (3, 970)  # numbers of rows of the tables that are loose in the artefact


def indices(batches: Sequence[Batch]) -> dict[str, float]:
    """Return the mean homogenization index of each table at the base bound, by its name."""
    once = [merged(batch).rows for batch in batches]
    return {table: mean_index([rows[table] for rows in once], bound=CLASSES.base)
            for table in batches[0].rows}  # fmt: skip


def agreement(sizes: Mapping[str, int], index: Mapping[str, float]) -> Mapping[str, float]:
    """Return how the classes agree with the sizes of the tables.

    rank_correlation: Spearman's, of index and size; -1: the larger a table, the lower its index.
    num_small, num_large: tables of SMALL rows, and of more; num_small_loose and so on: those of
    them in a class; num_small_lowest, num_large_lowest: those of them among the third of the tables
    with the lowest index, which a ranking would make tight.
    """
    names = sorted(sizes)
    is_small = {name: SMALL[0] <= sizes[name] <= SMALL[1] for name in names}
    is_large = {name: sizes[name] > SMALL[1] for name in names}
    lowest = set(sorted(names, key=index.__getitem__)[: len(names) // 3])
    values: dict[str, float] = {
        "rank_correlation": rank_correlation([index[n] for n in names], [sizes[n] for n in names])
    }
    for word, members in (("small", is_small), ("large", is_large)):
        values[f"num_{word}"] = sum(members.values())
        for kind in BoundClass:
            of_kind = (n for n in names if members[n] and CLASSES.of_index(index[n]) is kind)
            values[f"num_{word}_{kind.name.lower()}"] = sum(1 for _ in of_kind)
        values[f"num_{word}_lowest"] = sum(members[name] for name in lowest)
    return values


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's rank correlation; 0 where all of x, or of y, are equal.

    Equal values share the mean of their ranks.
    """
    ranked = [_ranks(np.asarray(values, dtype=float)) for values in (x, y)]
    if any(np.ptp(ranks) == 0 for ranks in ranked):
        return 0.0
    return float(np.corrcoef(*ranked)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: np.ndarray = (ends - (counts - 1) / 2)[inverse]
    return ranks
