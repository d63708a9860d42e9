"""What sc24.py measures without judging: cases by name, each a few numbers.

Knows: the trainings whose rows are measured. Does not know: claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial

import torch
from emulation.client import tables as table_names

from examples.bench.codecs.workload import Batch, merged
from examples.papers.dual_level import encoders
from examples.papers.dual_level.classes import agreement, indices
from examples.papers.dual_level.distributions import distribution
from examples.papers.dual_level.prediction import bits
from examples.papers.dual_level.ratio import BOUNDS, CLASSES, ratios, table_bound
from examples.papers.dual_level.setting import OPTIMIZERS, SHARES, TERABYTE, parts_of, trained
from examples.papers.measurements import Values
from examples.papers.parts import Request
from trec_qcomm.lab.preview.selector import Measurement

Cases = Mapping[str, Callable[[], Values]]
SAMPLES = (128, 2048)  # the artefact's batch, and the rows of a block of its vector-LZ
LINKS_GBIT_S = (0.1, 1.0, 10.0, 100.0)


class Rows:
    """What the trainings of one request look up.

    Args: request: has the options of train.py.  words: options that come before those.
    """

    def __init__(self, request: Request, words: tuple[str, ...] = ()) -> None:
        self.words = (*words, *request.words)

    def sizes(self, optimizer: str) -> Mapping[str, int]:
        """Return the number of rows of each table by name."""
        return trained(optimizer, self.words).sizes

    def batches(self, optimizer: str, samples: int, share: float = 1.0) -> list[Batch]:
        """Return batches of so many samples, after a share of the training."""
        return parts_of(trained(optimizer, self.words).looked_up[share], samples)


def ratio_cases(request: Request) -> Cases:
    """Return ratios of the trained rows by optimizer, samples a segment and bound."""
    rows = Rows(request)
    return {
        f"{optimizer}, {samples} samples, {bounds}": partial(
            _ratios, rows, optimizer, samples, bounds
        )
        for optimizer in OPTIMIZERS
        for samples in SAMPLES
        for bounds in BOUNDS
    }


def terabyte_cases(request: Request) -> Cases:
    """Return ratios by setting, optimizer and bound: a batch of the training is a segment."""
    settings = {
        "dim 32, batch 128": (Rows(request), SAMPLES[0]),
        "dim 64, batch 2048": (Rows(request, TERABYTE), SAMPLES[1]),
    }
    return {
        f"{setting}, {optimizer}, {bounds}": partial(_ratios, rows, optimizer, samples, bounds)
        for setting, (rows, samples) in settings.items()
        for optimizer in OPTIMIZERS
        for bounds in BOUNDS
    }


def distribution_cases(request: Request) -> Cases:
    """Return size, index and counts of values by optimizer and table, after the training."""
    rows = Rows(request)
    return {
        f"{optimizer}, {table}": partial(_distribution, rows, optimizer, table)
        for optimizer in OPTIMIZERS
        for table in table_names()
    }


def class_cases(request: Request) -> Cases:
    """Return the agreement of classes and sizes by optimizer and samples a batch."""
    rows = Rows(request)
    return {
        f"{optimizer}, {samples} samples": partial(_classes, rows, optimizer, samples)
        for optimizer in OPTIMIZERS
        for samples in SAMPLES
    }


def encoder_cases(request: Request) -> Cases:
    """Return modelled speed-ups by optimizer and link, of the rows of many batches."""
    rows = Rows(request)
    return {
        f"{optimizer}, {link:g} Gbit/s": partial(_encoders, rows, optimizer, link)
        for optimizer in OPTIMIZERS
        for link in LINKS_GBIT_S
    }


def prediction_cases(request: Request) -> Cases:
    """Return entropies with and without prediction, of rows and gradients."""
    rows = Rows(request)
    return {
        f"{optimizer}, {kind}, {bound:g}": partial(_prediction, rows, optimizer, kind, bound)
        for optimizer in OPTIMIZERS
        for kind in ("rows", "gradients")
        for bound in (0.01, 0.03)
    }


def drift_cases(request: Request) -> Cases:
    """Return indices, spreads and entropies by optimizer and share of the training."""
    rows = Rows(request)
    return {
        f"{optimizer}, {share:g}": partial(_drift, rows, optimizer, share)
        for optimizer in OPTIMIZERS
        for share in SHARES
    }


def _ratios(rows: Rows, optimizer: str, samples: int, bounds: str) -> Values:
    return ratios(rows.batches(optimizer, samples), bounds)


def _distribution(rows: Rows, optimizer: str, table: str) -> Values:
    """Return num_rows: of the table; index: mean over batches, at the base bound; and counts."""
    batches = [_of_table(batch, table) for batch in rows.batches(optimizer, SAMPLES[-1])]
    return {
        "num_rows": rows.sizes(optimizer)[table],
        "index": indices(batches)[table],
        **distribution([batch.rows[table] for batch in batches]),
    }


def _of_table(batch: Batch, table: str) -> Batch:
    return Batch(
        *({table: by_table[table]} for by_table in (batch.rows, batch.gradients, batch.ids))
    )


def _classes(rows: Rows, optimizer: str, samples: int) -> Values:
    return agreement(rows.sizes(optimizer), indices(rows.batches(optimizer, samples)))


def _encoders(rows: Rows, optimizer: str, gbit_s: float) -> Values:
    return encoders.on_link(_measured(optimizer, rows.words), gbit_s)


@lru_cache(maxsize=1)
def _measured(optimizer: str, words: tuple[str, ...]) -> dict[str, dict[str, Measurement]]:
    batches = parts_of(trained(optimizer, words).looked_up[1.0], SAMPLES[0])
    tables = {table: [batch.rows[table] for batch in batches] for table in batches[0].rows}
    once = [merged(batch).rows for batch in batches]
    bounds = {table: table_bound([rows[table] for rows in once], "classes") for table in tables}
    return encoders.measured(tables, bounds)


def _prediction(rows: Rows, optimizer: str, kind: str, bound: float) -> Values:
    batches = rows.batches(optimizer, SAMPLES[0])
    by_table = [[getattr(batch, kind)[table] for batch in batches] for table in batches[0].rows]
    return bits(by_table, bound)


def _drift(rows: Rows, optimizer: str, share: float) -> Values:
    """index: mean over tables, at the base bound, of batches; spread: standard deviation of a
    table's values, mean over tables; _largest: the third of the tables with the most rows; bits:
    entropy of the integers of rows at the base bound."""
    batches = rows.batches(optimizer, SAMPLES[-1], share)
    index, sizes = indices(batches), rows.sizes(optimizer)
    tables = {table: [batch.rows[table] for batch in batches] for table in sizes}
    spread = {table: torch.cat(looked_up).std().item() for table, looked_up in tables.items()}
    largest = sorted(sizes, key=sizes.__getitem__)[-(len(sizes) // 3) :]
    return {
        "index": _mean(index, list(sizes)),
        "index_largest": _mean(index, largest),
        "spread": _mean(spread, list(sizes)),
        "spread_largest": _mean(spread, largest),
        "bits": bits(list(tables.values()), CLASSES.base)["none"],
    }


def _mean(values: Mapping[str, float], names: list[str]) -> float:
    return sum(values[name] for name in names) / len(names)
