"""Ratios of a configuration on a model's own tables, for one plan and number of GPUs.

The ratio of a record is that of its plan and number of hosts. With measured sizes of segments
(control.traffic) it follows the plan: row-wise, more GPUs share a table's rows, so that segments
have fewer of them, and a bound is shared by more summands.

Knows: sizes, plans by name. Does not know: seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trec_qcomm.codecs import Identity
from trec_qcomm.config import Config, config_from_dict, parse_yaml
from trec_qcomm.ext.planner.traffic import (
    FixedSizes,
    MeasuredTable,
    Place,
    Sharded,
    TableBytes,
    sent_nbytes,
)
from trec_qcomm.lab.records import TableSizesRecord, read
from trec_qcomm.lab.simulate.links import Cluster
from trec_qcomm.lab.simulate.step import Configuration
from trec_qcomm.lab.sizes import load_measured

SHARDINGS = {"tw": "table_wise", "rw": "row_wise", "twrw": "table_row_wise"}


@dataclass(frozen=True, kw_only=True)
class OwnTables:
    """Measured tables of one configuration, one id a bag. Args: packed_ids: whether ids are."""

    tables: Mapping[str, MeasuredTable]
    packed_ids: bool

    def at(self, configuration: Configuration, plan: str, cluster: Cluster) -> Configuration:
        """Return the configuration with the ratios that it has there. Args: plan: tw, rw, twrw."""
        place = Place(num_ranks=cluster.num_gpus, node_size=cluster.node_size)
        ours = [self._sent(t, plan, place) for t in self.tables.values()]
        exact = [
            sent_nbytes(_as_float32(t), Sharded(sharding=SHARDINGS[plan]), place)
            for t in self.tables.values()
        ]

        def ratio(group: str) -> float:
            sent = sum(getattr(nbytes, group) for nbytes in ours)
            return sum(getattr(nbytes, group) for nbytes in exact) / sent if sent else 1.0

        bags = sum(t.num_bags for t in self.tables.values())
        return replace(
            configuration,
            distinct_share=sum(t.num_sent for t in self.tables.values()) / bags,
            forward=ratio("forward"),
            backward=ratio("backward"),
            ids=ratio("ids"),
        )

    def _sent(self, table: MeasuredTable, plan: str, place: Place) -> TableBytes:
        how = Sharded(sharding=SHARDINGS[plan])
        return sent_nbytes(table, how, place, packed_ids=self.packed_ids)


def _as_float32(table: MeasuredTable) -> MeasuredTable:
    exact = FixedSizes(Identity())
    return replace(table, forward=exact, backward=exact, intra_forward=exact, intra_backward=exact)


def read_sizes(path: Path) -> list[TableSizesRecord]:
    """Return the records of sizes in a file. Raises ValueError: there are none."""
    records = [record for record in read(path) if isinstance(record, TableSizesRecord)]
    if not records:
        raise ValueError(f"sizes: {path}: no record of kind table_sizes")
    return records


def own_tables(name: str, sizes: Sequence[TableSizesRecord]) -> OwnTables | None:
    """Return the tables as a configuration sends them; None without sizes, as of plain TorchRec.

    The last record of its name counts.
    """
    named = [record for record in sizes if record.configuration == name]
    if not named:
        return None
    config = config_of(named[-1])
    return OwnTables(tables=load_measured(named[-1:], config), packed_ids=config.ids is not None)


def config_of(record: TableSizesRecord) -> Config:
    """Return the config that sizes are of."""
    where = str(record.origin or record.configuration)
    return config_from_dict(parse_yaml(record.config or "", name=where), source=where)
