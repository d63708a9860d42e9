"""What was measured of each table's segments, read from rows or from records for a configuration.

Knows: configs, files of rows, records. Does not know: TorchRec, shardings.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from trec_qcomm.core.codec import Codec, MaskUse
from trec_qcomm.ext.planner.traffic import (
    FixedSizes,
    MeasuredTable,
    RecordedSizes,
    SampledSizes,
    SizeCurve,
    Sizes,
)
from trec_qcomm.lab.records import Record, SegmentSizes, TableSizes, TableSizesRecord, read
from trec_qcomm.lab.sizes.rows import Blocks, blocks_by_table, distinct, read_content

Measured = str | Path | TableSizesRecord | Sequence[Record]
SizesOf = Callable[[str, Codec], Sizes]  # of a direction and its codec
DIRECTIONS = {"forward": "rows", "backward": "gradients"}
COUNTED = ("num_bags", "num_distinct", "num_rows", "num_joint", "num_joint_ranks")
_BATCH = 2**31  # a tensor of rows is one batch


def load_measured(measured: Measured, config: Config) -> dict[str, MeasuredTable]:
    """Return what was measured of each table, as a configuration sends it.

    Args:
        measured: a file of QComm.capture_rows (.pt), one of records of kind table_sizes, or such
            records.
    Raises: ValueError naming file, field and table: rows that are partial sums, no gradients for a
        codec whose sizes depend on them, or records of other codecs.
    """
    if isinstance(measured, str | Path) and Path(measured).suffix == ".pt":
        return _from_rows(Path(measured), config)
    if isinstance(measured, str | Path):
        measured = read(Path(measured))
    elif isinstance(measured, TableSizesRecord):
        measured = [measured]
    return _from_records([r for r in measured if isinstance(r, TableSizesRecord)], config)


def measure_sizes(path: Path, config: Config, **fields: Any) -> TableSizesRecord:
    """Return the record of a configuration on the rows of a file. Raises ValueError naming both.

    Args: fields: other fields of the record, such as `configuration` and `setup`.
    """
    content = read_content(path)
    meta = content.get("meta", {})
    tables = _from_rows(path, config)
    return TableSizesRecord(
        config=write_yaml(config_to_dict(config)),
        num_ranks=int(meta.get("world_size", 1)),
        num_steps=int(meta.get("steps", 1)),
        tables={
            name: TableSizes(
                dim=table.dim,
                forward=_recorded(table.forward),
                backward=_recorded(table.backward),
                **{field: getattr(table, field) for field in COUNTED},
            )
            for name, table in tables.items()
        },
        **fields,
    )


def _from_rows(path: Path, config: Config) -> dict[str, MeasuredTable]:
    content = read_content(path)
    blocks = {"forward": blocks_by_table(path, content, "rows", batch=_BATCH), "backward": {}}
    if content.get("gradients"):
        blocks["backward"] = blocks_by_table(path, content, "gradients", batch=_BATCH)
    counts = content.get("tables", {})
    if not isinstance(counts, dict):
        raise ValueError(f"{path}: tables: expected counts by table")
    return {
        table: _table_of_rows(f"{path}: {table}", table, blocks, counts.get(table, {}), config)
        for table in blocks["forward"]
    }


def _table_of_rows(
    where: str,
    table: str,
    blocks: Mapping[str, Blocks],
    counts: Mapping[str, int],
    config: Config,
) -> MeasuredTable:
    rows, rule = blocks["forward"][table], config.rule_for(table)
    if counts.get("is_partial"):
        raise ValueError(
            f"{where}: rows are partial sums of a row-wise table; capture them in a training with "
            "the table whole on a rank, cut by columns, or two-level"
        )
    num_sent = counts["num_sent"] / counts["num_blocks"] if counts else fmean(map(len, rows))
    merged = counts.get("num_distinct", 0) < counts.get("num_bags", 0)
    if merged:
        num_bags, num_distinct = num_sent * counts["num_bags"] / counts["num_distinct"], num_sent
    else:
        differ = [distinct(block) for block in rows]
        num_bags = num_sent
        num_distinct = num_sent * fmean(map(len, differ)) / fmean(map(len, rows))
        rows = differ if _merges(rule, num_distinct / num_bags) else rows
    sampled = {"forward": rows, "backward": blocks["backward"].get(table, [])}

    def sizes_of(direction: str, codec: Codec) -> Sizes:
        return _sizes(f"{where}: {DIRECTIONS[direction]}", codec, sampled[direction])

    counted = {
        "num_bags": num_bags, "num_distinct": num_distinct, "num_rows": counts.get("num_rows")
    }  # fmt: skip
    if sets := counts.get("num_joint_sets", 0):
        counted["num_joint"] = counts["num_joint"] / sets
        counted["num_joint_ranks"] = round(counts["num_blocks"] / sets)
    return _measured_table(rule, rows[0].shape[1], counted, sizes_of)


def _measured_table(
    rule: TableRule, dim: int, counted: Mapping[str, Any], sizes_of: SizesOf
) -> MeasuredTable:
    bags, differ = counted["num_bags"], counted["num_distinct"]
    return MeasuredTable(
        dim=dim,
        **counted,
        num_sent=differ if _merges(rule, differ / bags) else bags,
        forward=sizes_of("forward", rule.forward),
        backward=sizes_of("backward", rule.backward),
        intra_forward=sizes_of("forward", rule.intra.forward),
        intra_backward=sizes_of("backward", rule.intra.backward),
    )


def _merges(rule: TableRule, distinct_share: float) -> bool:
    """Return whether equal bags are sent once."""
    if rule.unique_bags == "auto":
        return distinct_share <= AUTO_SHARE
    return bool(rule.unique_bags)


def _sizes(where: str, codec: Codec, blocks: Sequence[Tensor]) -> Sizes:
    if codec.fixed_size or codec.mask_use is MaskUse.READS:
        return FixedSizes(codec)
    if not blocks:
        raise ValueError(
            f"{where}: none, which {codec.name} needs to tell its sizes; see gradients=True of "
            "QComm.capture_rows"
        )
    return SampledSizes(codec, blocks)


def _from_records(records: Sequence[TableSizesRecord], config: Config) -> dict[str, MeasuredTable]:
    """Return the tables of the last record whose codecs are the config's."""
    if not records:
        raise ValueError("measured: no record of kind table_sizes")
    reason = ""
    for record in reversed(records):
        try:
            return _from_record(record, config)
        except ValueError as error:
            reason = reason or str(error)
    raise ValueError(reason)


def _from_record(record: TableSizesRecord, config: Config) -> dict[str, MeasuredTable]:
    where = f"measured: {record.origin or record.configuration}"
    theirs = config_from_dict(parse_yaml(record.config or "", name=where), source=where)
    return {
        name: _table_of_record(
            f"{where}: {name}", table, theirs.rule_for(name), config.rule_for(name)
        )
        for name, table in record.tables.items()
    }


def _table_of_record(
    where: str, table: TableSizes, theirs: TableRule, rule: TableRule
) -> MeasuredTable:
    def sizes_of(direction: str, codec: Codec) -> Sizes:
        if codec.fixed_size or codec.mask_use is MaskUse.READS:
            return FixedSizes(codec)
        if codec != getattr(theirs, direction):
            raise ValueError(
                f"{where}: {direction}: sizes are of {getattr(theirs, direction)!r}, not of "
                f"{codec!r}; measure it with python -m trec_qcomm sizes"
            )
        curves: Iterable[SegmentSizes] = getattr(table, direction)
        return RecordedSizes(
            {(c.dim, c.num_terms): SizeCurve(c.num_rows, c.nbytes) for c in curves}
        )

    counted = {field: getattr(table, field) for field in COUNTED}
    return _measured_table(rule, table.dim, counted, sizes_of)


def _recorded(sizes: Sizes) -> tuple[SegmentSizes, ...]:
    if not isinstance(sizes, SampledSizes):
        return ()
    return tuple(
        SegmentSizes(
            dim=dim,
            num_terms=terms,
            num_rows=tuple(round(n, 2) for n in curve.num_rows),
            nbytes=tuple(round(n, 1) for n in curve.nbytes),
        )
        for (dim, terms), curve in sizes.recorded().items()
    )
