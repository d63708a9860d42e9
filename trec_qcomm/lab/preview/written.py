"""What --out leaves behind: a config in YAML, and the choices of all tables as text."""

import glob
import json
from collections.abc import Sequence

from trec_qcomm.codecs import ErrorBounded, Identity
from trec_qcomm.config import Config, TableRule, UniqueBagsChoice, config_to_dict, write_yaml
from trec_qcomm.core.aligned import aligned
from trec_qcomm.core.codec import Codec
from trec_qcomm.lab.preview.choices import Options, TableChoice

_HEAD = (
    "table", "rows", "index", "class", "bound", "kept", "encoder", "ratio", "speed-up",
    "backward", "speed-up",
)  # fmt: skip


def config_text(
    choices: Sequence[TableChoice],
    options: Options,
    *,
    source: str,
    without_rows: Sequence[str] = (),
) -> str:
    """Return a complete config: one rule for all tables of equal codecs, tables by name.

    Args: source: name of the file of rows.  without_rows: tables of which it has none.
    """
    classes, name = options.classes, json.dumps(source, ensure_ascii=False)
    notes = [
        f"Made by python -m trec_qcomm preview from {name}.",
        f"index: the share of distinct rows that stay apart under the bound {classes.base:g}.",
        f"Below {classes.tight_below:g} a table is tight, from {classes.loose_from:g} on loose.",
        "kept: the same share under the table's own bound.",
        "ratio: of the rows that are sent, without frame headers.",
        f"Each codec is the fastest over a link of {options.link_gb_s:g} GB/s.",
        *choices_text(choices).split("\n"),
    ]
    data = config_to_dict(config_of(choices, options, without_rows))
    return "".join(f"# {note}\n" for note in notes) + write_yaml(data)


def config_of(
    choices: Sequence[TableChoice], options: Options, without_rows: Sequence[str]
) -> Config:
    """Return the config: rules of equal codecs, and a last one for tables without rows."""
    groups: dict[tuple[Codec, Codec], list[str]] = {}
    for choice in choices:
        tables = groups.setdefault((choice.forward, choice.backward), [])
        tables.append(glob.escape(choice.figures.table))
    merged: UniqueBagsChoice = "auto" if options.unique_bags else False
    rules = [
        TableRule(tables=tables, forward=forward, backward=backward, unique_bags=merged)
        for (forward, backward), tables in groups.items()
    ]
    if without_rows:
        names = [glob.escape(table) for table in without_rows]
        rules.append(TableRule(tables=names, forward=Identity(), backward=Identity()))
    return Config(embedding=tuple(rules))


def choices_text(choices: Sequence[TableChoice]) -> str:
    """Return a line a table: index, class, bound, encoder, codec of gradients, their speed-up.

    A choice of identity is beside the speed-up, below 1, of what would have been chosen.
    """
    lines = [_HEAD]
    for choice in choices:
        figures, bound, codec = choice.figures, choice.bound, choice.forward
        encoder = codec.encoder if isinstance(codec, ErrorBounded) else codec.name
        ratio = choice.sent.sent_nbytes / choice.sent.wire_nbytes
        lines.append((
            figures.table if figures.table.isprintable() else repr(figures.table),
            f"{figures.num_sent:.0f} of {figures.num_rows:.0f}", f"{bound.index:.3f}",
            bound.bound_class.name.lower(), f"{bound.bound:g}", f"{bound.kept:.3f}", encoder,
            f"{ratio:.2f}", f"{choice.speed_up:.2f}", choice.backward.name,
            f"{choice.backward_speed_up:.2f}",
        ))  # fmt: skip
    return aligned(lines)


def summary(choices: Sequence[TableChoice], unit: str) -> str:
    """Return the bytes before and after, and how many tables stay float32."""
    raw, sent, encoded = (
        sum(getattr(choice.sent, field) for choice in choices)
        for field in ("raw_nbytes", "sent_nbytes", "wire_nbytes")
    )
    num_slow = sum(choice.speed_up <= 1 for choice in choices)
    warning = f"; {num_slow} stay float32, which is faster on this link" if num_slow else ""
    return (
        f"{len(choices)} tables, {unit}: {raw / 1e3:.1f} KB of rows -> {encoded / 1e3:.1f} KB, "
        f"{raw / encoded:.1f}x (distinct rows {raw / sent:.2f}x, encoding {sent / encoded:.2f}x)"
        f"{warning}"
    )
