"""MeasuredPrices: measurements of a model's tables, in the form that the estimator needs.

Knows: TorchRec's sharding options, traffic.py. Does not know: milliseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from trec_qcomm.config import Config
from trec_qcomm.ext.planner.sizes import FixedSizes
from trec_qcomm.ext.planner.traffic import MeasuredTable, Place, hops_of
from trec_qcomm.integration.compat import Shard, ShardingOption
from trec_qcomm.wire.frame import overhead_nbytes

MOST_APART = 0.05  # of the batch size that rows were captured with


class MeasuredPrices:
    """Expected rows and bytes of shards.

    Args:
        config: settings of the codecs.
        tables: measurements of each table.
        place: ranks and nodes for which the plan is.
    """

    def __init__(self, config: Config, tables: Mapping[str, MeasuredTable], place: Place) -> None:
        self._packed = config.ids is not None
        self._tables, self._place = tables, place

    def sent(
        self,
        so: ShardingOption,
        shard: Shard,
        direction: str,
        num_samples: Sequence[float],
        *,
        intra: bool,
        dtype: torch.dtype,
    ) -> tuple[float, float]:
        """Return the rows between a shard and one peer, and their bytes with headers.

        In forward the shard sends the rows; in backward it receives their gradients.

        Args: num_samples: bags of each feature in a rank's batch.  intra: whether it is the hop
            inside a node.  dtype: dtype of the rows; measured rows are float32.
        """
        field, dim = f"intra_{direction}" if intra else direction, shard.size[1]
        table = _with_rows_of(dtype, self._table(so, num_samples), field)
        num_rows = nbytes = 0.0
        for number, samples in enumerate(num_samples):
            (hop,) = (
                hop
                for hop in hops_of(
                    so.sharding_type,
                    self._place,
                    rows_share=shard.size[0] / so.tensor.shape[0],
                    num_ids=so.input_lengths[number],
                )
                if hop.is_intra == intra
            )
            scale = samples / table.num_bags
            num_rows += scale * table.num_sent * hop.share * hop.num_batches
            nbytes += scale * table.segment_nbytes(direction, hop, dim)
        return num_rows, nbytes + overhead_nbytes(len(num_samples))

    def ids_nbytes(self, so: ShardingOption, shard: Shard, num_samples: Sequence[float]) -> float:
        """Return the bytes of ids and lengths that a rank sends a shard."""
        table, share = self._table(so, num_samples), shard.size[0] / so.tensor.shape[0]
        return sum(
            samples / table.num_bags * table.ids_nbytes(share, ids, packed=self._packed)
            for samples, ids in zip(num_samples, so.input_lengths, strict=True)
        )

    def num_touched(self, so: ShardingOption, num_samples: Sequence[float]) -> float:
        """Return the rows of a table that all ranks touch together in a step."""
        table, num_rows = self._table(so, num_samples), so.tensor.shape[0]
        rows = sum(
            samples / table.num_bags * table.num_touched(num_rows, ids, self._place.num_ranks)
            for samples, ids in zip(num_samples, so.input_lengths, strict=True)
        )
        return min(rows, float(num_rows))

    def distinct_share(self, so: ShardingOption) -> float:
        """Return the share of bags that is looked up."""
        return self._tables[so.name].distinct_share

    def _table(self, so: ShardingOption, num_samples: Sequence[float]) -> MeasuredTable:
        """Return what was measured of an option's table.

        Raises: ValueError: nothing was, or with another batch size, or it is not pooled.
        """
        if so.name not in self._tables:
            raise ValueError(
                f"measured: nothing of table {so.name!r}; there is: {', '.join(self._tables)}; a "
                "DATA_PARALLEL table sends no rows: capture with a plan that has it table-wise"
            )
        if not so.is_pooled:
            raise ValueError(f"measured: table {so.name!r} is not pooled; only pooled ones can be")
        table = self._tables[so.name]
        for samples in num_samples:
            if abs(samples / table.num_bags - 1) > MOST_APART:
                raise ValueError(
                    f"measured: table {so.name!r} with {table.num_bags:g} bags a rank, and "
                    f"{samples:g} are planned; capture rows with that batch size"
                )
        return table


def _with_rows_of(dtype: torch.dtype, table: MeasuredTable, field: str) -> MeasuredTable:
    """Return the table with sizes of the rows' dtype in one field, if its codec has fixed sizes."""
    sizes = getattr(table, field)
    if not isinstance(sizes, FixedSizes):
        return table
    resized: dict[str, Any] = {field: FixedSizes(sizes.codec.for_values(dtype))}
    return replace(table, **resized)
