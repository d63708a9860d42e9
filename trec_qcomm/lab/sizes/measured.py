"""Measure each table's segments on rows, keep the results as a record, and read them.

Knows: configs, files of rows, records. Does not know: TorchRec, shardings.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from trec_qcomm.config import (
    AUTO_SHARE,
    Config,
    TableRule,
    config_from_dict,
    config_to_dict,
    parse_yaml,
    write_yaml,
)
from trec_qcomm.core.codec import Codec
from trec_qcomm.ext.planner.sizes import FixedSizes, RecordedSizes, SampledSizes, SizeCurve, Sizes
from trec_qcomm.ext.planner.traffic import MeasuredTable
from trec_qcomm.lab.records import Record, SegmentSizes, TableSizes, TableSizesRecord, read
from trec_qcomm.lab.sizes.rows import blocks_by_table, distinct, read_content

Measured = str | Path | TableSizesRecord | Sequence[Record]
COUNTED = ("num_bags", "num_distinct", "num_rows", "num_joint", "num_joint_ranks")
_BATCH = 2**31  # a tensor of rows is one batch


def load_measured(measured: Measured, config: Config) -> dict[str, MeasuredTable]:
    """Return the measurements of each table, as a configuration sends it.

    Args:
        measured: a file of QComm.capture_rows (.pt), which is measured for this configuration; or a
            file of records of kind table_sizes, or such records. The last record with the config's
            codecs counts.
    Raises: ValueError: rows that are partial sums, no gradients for a codec whose sizes depend on
        them, or records of other codecs. The error names file, field and table.
    """
    if isinstance(measured, str | Path):
        path = Path(measured)
        is_rows = path.suffix == ".pt"
        measured = measure_sizes(path, config, configuration=str(path)) if is_rows else read(path)
    each = [measured] if isinstance(measured, TableSizesRecord) else measured
    reason = "measured: no record of kind table_sizes"
    for number, record in enumerate(r for r in reversed(each) if isinstance(r, TableSizesRecord)):
        try:
            return _from_record(record, config)
        except ValueError as error:
            reason = reason if number else str(error)
    raise ValueError(reason)


def measure_sizes(path: Path, config: Config, **fields: Any) -> TableSizesRecord:
    """Return the record of a configuration on the rows of a file. A ValueError names both.

    Args: fields: other fields of the record, such as `configuration` and `setup`.
    """
    content = read_content(path)
    gradients, counts = content.get("gradients"), content.get("tables", {})
    if gradients:
        gradients = blocks_by_table(path, content, "gradients", batch=_BATCH)
    if not isinstance(counts, dict):
        raise ValueError(f"{path}: tables: expected counts by table")
    return TableSizesRecord(
        config=write_yaml(config_to_dict(config)),
        num_ranks=int(content.get("meta", {}).get("world_size", 1)),
        num_steps=int(content.get("meta", {}).get("steps", 1)),
        tables={
            name: _measured_on(
                f"{path}: {name}",
                rows,
                (gradients or {}).get(name, []),
                counts=counts.get(name, {}),
                rule=config.rule_for(name),
            )
            for name, rows in blocks_by_table(path, content, "rows", batch=_BATCH).items()
        },
        **fields,
    )


def _measured_on(
    where: str,
    rows: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *,
    counts: Mapping[str, int],
    rule: TableRule,
) -> TableSizes:
    if counts.get("is_partial"):
        raise ValueError(
            f"{where}: rows are partial sums of a row-wise table; capture them in a training with "
            "the table whole on a rank, cut by columns, or two-level"
        )
    num_sent = counts["num_sent"] / counts["num_blocks"] if counts else fmean(map(len, rows))
    num_bags = num_distinct = num_sent
    if counts.get("num_distinct", 0) < counts.get("num_bags", 0):  # equal bags were merged
        num_bags *= counts["num_bags"] / counts["num_distinct"]
    else:
        differ = [distinct(block) for block in rows]
        num_distinct *= fmean(map(len, differ)) / fmean(map(len, rows))
        rows = differ if _merges(rule, num_distinct / num_bags) else rows
    joint: dict[str, Any] = {}
    if sets := counts.get("num_joint_sets", 0):
        joint = {"num_joint": counts["num_joint"] / sets}
        joint["num_joint_ranks"] = round(counts["num_blocks"] / sets)
    return TableSizes(
        dim=rows[0].shape[1],
        num_rows=counts.get("num_rows"),
        num_bags=num_bags,
        num_distinct=num_distinct,
        **joint,
        forward=_measured_sizes(f"{where}: rows", rule.forward, rows),
        backward=_measured_sizes(f"{where}: gradients", rule.backward, gradients),
    )


def _merges(rule: TableRule, distinct_share: float) -> bool:
    """Return whether equal bags are sent once."""
    if rule.unique_bags == "auto":
        return distinct_share <= AUTO_SHARE
    return bool(rule.unique_bags)


def _is_known(codec: Codec) -> bool:
    """Return whether a codec tells its sizes without rows."""
    return codec.fixed_size or codec.follows_forward


def _measured_sizes(where: str, codec: Codec, blocks: Sequence[Tensor]) -> tuple[SegmentSizes, ...]:
    if _is_known(codec):
        return ()
    if not blocks:
        raise ValueError(
            f"{where}: none, which {codec.name} needs to tell its sizes; see gradients=True of "
            "QComm.capture_rows"
        )
    return tuple(
        SegmentSizes(
            dim=dim,
            num_terms=terms,
            num_rows=tuple(round(n, 2) for n in curve.num_rows),
            nbytes=tuple(round(n, 1) for n in curve.nbytes),
        )
        for (dim, terms), curve in SampledSizes(codec, blocks).recorded().items()
    )


def _from_record(record: TableSizesRecord, config: Config) -> dict[str, MeasuredTable]:
    where = f"measured: {record.origin or record.configuration}"
    theirs = config_from_dict(parse_yaml(record.config or "", name=where), source=where)
    return {
        name: _table(f"{where}: {name}", table, theirs.rule_for(name), config.rule_for(name))
        for name, table in record.tables.items()
    }


def _table(where: str, table: TableSizes, theirs: TableRule, rule: TableRule) -> MeasuredTable:
    def sizes_of(direction: str, codec: Codec) -> Sizes:
        if _is_known(codec):
            return FixedSizes(codec)
        if codec != getattr(theirs, direction):
            raise ValueError(
                f"{where}: {direction}: sizes are of {getattr(theirs, direction)!r}, not of "
                f"{codec!r}; measure it with python -m trec_qcomm sizes"
            )
        curves: Sequence[SegmentSizes] = getattr(table, direction)
        return RecordedSizes(
            {(c.dim, c.num_terms): SizeCurve(c.num_rows, c.nbytes) for c in curves}
        )

    merged = _merges(rule, table.num_distinct / table.num_bags)
    return MeasuredTable(
        dim=table.dim,
        **{field: getattr(table, field) for field in COUNTED},
        num_sent=table.num_distinct if merged else table.num_bags,
        forward=sizes_of("forward", rule.forward),
        backward=sizes_of("backward", rule.backward),
        intra_forward=sizes_of("forward", rule.intra.forward),
        intra_backward=sizes_of("backward", rule.intra.backward),
    )
