"""What the analysis says: a config in YAML with comments, a table, a last line."""

import glob
import json
from collections.abc import Sequence

import yaml

from trec_qcomm.analyze.tables import Options, TableResult, error_bounded
from trec_qcomm.config import Config, TableRule, codec_to_dict, config_from_dict
from trec_qcomm.core.codec import Codec

_COLUMNS = ("table", "rows", "distinct", "index", "class", "bound", "kept")


def config_text(
    results: Sequence[TableResult], options: Options, *, backward: Codec, source: str
) -> str:
    """A complete config: one rule for each class and encoder, tables by name."""
    classes, rows = options.classes, "distinct rows" if options.unique_bags else "rows"
    lines = [
        f"# Made by python -m trec_qcomm.analyze from {json.dumps(source, ensure_ascii=False)}.",
        f"# index: the share of distinct rows that stay apart under the bound {classes.base:g}.",
        f"# Below {classes.tight_below:g} a table is tight, from {classes.loose_from:g} on loose.",
        "# kept: the same share under the table's own bound.",
        f"# ratio: of the {rows} of a batch, without frame headers.",
        f"# Each encoder is the fastest over a link of {options.link_gb_s:g} GB/s.",
        "embedding:",
    ]
    rules = []
    for key in sorted({_group(result) for result in results}):
        members = [result for result in results if _group(result) == key]
        rule = TableRule(
            tables=tuple(glob.escape(member.table) for member in members),
            forward=error_bounded(members[0].bound, members[0].encoder),
            backward=backward,
            unique_bags="auto" if options.unique_bags else False,
        )
        rules.append(rule)
        lines += _rule_lines(rule, members)
    text = "\n".join([*lines, "seed: 0", "measure_error: false", ""])
    assert config_from_dict(yaml.safe_load(text)) == Config(embedding=tuple(rules))
    return text


def _group(result: TableResult) -> tuple[int, str]:
    return int(result.bound_class), result.encoder


def _rule_lines(rule: TableRule, members: Sequence[TableResult]) -> list[str]:
    lines = [f"  # {members[0].bound_class.name.lower()}", "  - tables:"]
    for pattern, member in zip(rule.tables, members, strict=True):
        name = json.dumps(pattern, ensure_ascii=False)  # which is YAML, too
        lines.append(
            f"      - {name}  # index {member.index:.3f}, kept {member.kept:.3f}, "
            f"{member.num_distinct:.0f} of {member.num_rows:.0f} distinct, ratio {member.ratio:.2f}"
        )
    lines.append(f"    forward: {_flow(rule.forward)}")
    lines.append(f"    backward: {_flow(rule.backward)}")
    if rule.unique_bags:
        lines.append(f"    unique_bags: {rule.unique_bags}")
    return lines


def _flow(codec: Codec) -> str:
    """{codec: rowwise, bits: 4, ...} on one line."""
    dumped: str = yaml.safe_dump(
        codec_to_dict(codec), default_flow_style=True, sort_keys=False, width=1e9
    )
    return dumped.strip()


def table_text(results: Sequence[TableResult], options: Options) -> str:
    """One line a table: rows of a batch, index, bound, ratio by encoder, choice, speed-up."""
    ratios = [f"ratio {name}" for name in options.encoders]
    lines = [(*_COLUMNS, *ratios, "encoder", "speed-up")]
    for result in results:
        measured = [result.by_encoder[name].compression_ratio for name in options.encoders]
        lines.append(
            (
                result.table,
                f"{result.num_rows:.0f}",
                f"{result.num_distinct:.0f}",
                f"{result.index:.3f}",
                result.bound_class.name.lower(),
                f"{result.bound:g}",
                f"{result.kept:.3f}",
                *(f"{ratio:.2f}" for ratio in measured),
                result.encoder,
                f"{result.selection.speed_up:.2f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def summary(results: Sequence[TableResult], options: Options, out: object) -> str:
    """The last line: bytes of a batch before and after, and what does not pay."""
    raw = sum(result.raw_nbytes for result in results)
    sent = sum(result.sent_nbytes for result in results)
    encoded = sum(result.sent_nbytes / result.ratio for result in results)
    num_slow = sum(result.selection.speed_up < 1 for result in results)
    warning = f"; on this link {num_slow} would be faster as float32" if num_slow else ""
    return (
        f"{len(results)} tables: {raw / 1e3:.1f} KB of rows a batch -> {encoded / 1e3:.1f} KB, "
        f"{raw / encoded:.1f}x (distinct rows {raw / sent:.2f}x, encoding {sent / encoded:.2f}x)"
        f"{warning}; wrote {out}"
    )
