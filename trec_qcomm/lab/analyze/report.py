"""What the analysis says: a config in YAML with comments, a table, a last line."""

import glob
import json
from collections.abc import Sequence

import yaml

from trec_qcomm.codecs import Identity
from trec_qcomm.config import Config, TableRule, codec_to_dict, config_from_dict, parse_yaml
from trec_qcomm.core.aligned import aligned
from trec_qcomm.core.codec import Codec
from trec_qcomm.lab.analyze.tables import Options, TableResult

_COLUMNS = ("table", "rows", "distinct", "index", "class", "bound", "kept")


def config_text(
    results: Sequence[TableResult],
    options: Options,
    *,
    source: str,
    without_rows: Sequence[str] = (),
) -> str:
    """Return a complete config: one rule for all tables of equal codecs, tables by name.

    Args: source: name of the file of rows.  without_rows: tables of which it has none.
    """
    classes, rows = options.classes, "distinct rows" if options.unique_bags else "rows"
    lines = [
        f"# Made by python -m trec_qcomm analyze from {json.dumps(source, ensure_ascii=False)}.",
        f"# index: the share of distinct rows that stay apart under the bound {classes.base:g}.",
        f"# Below {classes.tight_below:g} a table is tight, from {classes.loose_from:g} on loose.",
        "# kept: the same share under the table's own bound.",
        f"# ratio: of the {rows} of a batch, without frame headers.",
        f"# Each codec is the fastest over a link of {options.link_gb_s:g} GB/s.",
        "embedding:",
    ]
    rules = []
    groups: dict[tuple[str, str], list[TableResult]] = {}
    for result in results:
        groups.setdefault((repr(result.forward), repr(result.backward)), []).append(result)
    for _, members in sorted(groups.items()):
        rule = TableRule(
            tables=tuple(glob.escape(member.table) for member in members),
            forward=members[0].forward,
            backward=members[0].backward,
            unique_bags="auto" if options.unique_bags else False,
        )
        rules.append(rule)
        lines += _rule_lines(rule, [_table_note(member) for member in members])
    if without_rows:
        names = tuple(map(glob.escape, without_rows))
        rules.append(TableRule(tables=names, forward=Identity(), backward=Identity()))
        lines += _rule_lines(rules[-1], ["no rows in the file"] * len(names))
    text = "\n".join([*lines, "seed: 0", "measure_error: false", ""])
    read = config_from_dict(parse_yaml(text, name="config"))
    assert read == Config(embedding=tuple(rules))
    return text


def _table_note(result: TableResult) -> str:
    return (
        f"{result.bound_class.name.lower()}: index {result.index:.3f}, kept {result.kept:.3f}, "
        f"{result.num_distinct:.0f} of {result.num_rows:.0f} distinct, ratio {result.ratio:.2f}"
    )


def _rule_lines(rule: TableRule, notes: Sequence[str]) -> list[str]:
    lines = ["  - tables:"]
    for pattern, note in zip(rule.tables, notes, strict=True):
        name = json.dumps(pattern, ensure_ascii=False)  # which is YAML, too
        lines.append(f"      - {name}  # {note}")
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
    """Return a line a table: rows of a batch, index, bound, ratios, choices, their speed-up.

    A choice of identity is beside the speed-up, below 1, of what would have been chosen.
    """
    ratios = [f"ratio {name}" for name in options.encoders]
    lines = [(*_COLUMNS, *ratios, "encoder", "speed-up", "backward", "speed-up")]
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
                result.backward.name,
                f"{result.backward_speed_up:.2f}",
            )
        )
    return aligned(lines)


def summary(results: Sequence[TableResult], out: object) -> str:
    """Return the last line: bytes of a batch before and after, and how many stay float32."""
    raw = sum(result.raw_nbytes for result in results)
    sent = sum(result.sent_nbytes for result in results)
    encoded = sum(result.sent_nbytes / result.ratio for result in results)
    num_slow = sum(not result.is_faster for result in results)
    warning = f"; {num_slow} stay float32, which is faster on this link" if num_slow else ""
    return (
        f"{len(results)} tables: {raw / 1e3:.1f} KB of rows a batch -> {encoded / 1e3:.1f} KB, "
        f"{raw / encoded:.1f}x (distinct rows {raw / sent:.2f}x, encoding {sent / encoded:.2f}x)"
        f"{warning}; wrote {out}"
    )
