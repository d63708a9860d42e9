"""What a trec_qcomm config makes of the example's tables and dense gradients, in one process.

Knows: a config, the example's tables. Does not know: the model, rows, optimizers.
Shapes: F = 26 features, U distinct rows of all ranks, D values a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from data.dataset import FEATURES
from torch import Tensor

from trec_qcomm import Config, GradientRule
from trec_qcomm.comm.emulate import EmulatedExchange
from trec_qcomm.integration.ids.bag_merging import max_shares
from trec_qcomm.integration.tolerances import ForwardTolerances
from trec_qcomm.ops.unique import UniqueBags


@dataclass(frozen=True)
class Codecs:
    """Codecs of one config for the rows of all tables and for the dense gradients.

    Args:
        exchange: exchange of rows and gradients with the config's codecs.
        shares: [F] float64, largest share of distinct bags with which they are merged.
        tolerances: error bounds and thresholds of the tables, which change while training.
        seed: seed of stochastic rounding.
        dense: rule of the dense gradients; None sums them exactly.
    """

    exchange: EmulatedExchange
    shares: Tensor
    tolerances: ForwardTolerances
    seed: int
    dense: GradientRule | None = None

    @classmethod
    def from_config(cls, config: Config, embedding_dim: int) -> Codecs:
        """Return the codecs of the example's tables.

        Raises: ValueError: the config's patterns do not fit the tables, or its codecs not together.
        """
        tables = [f"t_{feature}" for feature in FEATURES]
        config.check_patterns(tables)
        rules = tuple(config.rule_for(table) for table in tables)
        exchange = EmulatedExchange(
            dims=(embedding_dim,) * len(rules),
            forward=tuple(rule.forward for rule in rules),
            backward=tuple(rule.backward for rule in rules),
        )
        shares = torch.tensor(max_shares([r.unique_bags for r in rules]), dtype=torch.float64)
        tolerances = ForwardTolerances(dict(zip(tables, rules, strict=True)), tables)
        return cls(exchange, shares, tolerances, config.seed, config.dense)

    def measure(self, step: int, rows: Tensor, bags: Sequence[UniqueBags]) -> None:
        """Show classes and thresholds the rows that are about to be sent, if the step is due.

        Args:
            step: number of the step.
            rows: [U, D], rows of the bags, rank by rank and table by table.
            bags: distinct bags of each rank.
        """
        due = self.tolerances.tables_due(step)
        counts = torch.cat([b.counts for b in bags]).tolist() if due else []
        blocks = rows.detach().split(counts) if due else ()
        for table in due:
            number = FEATURES.index(table.removeprefix("t_"))
            self.tolerances.measure(table, torch.cat(blocks[number :: len(FEATURES)]))
