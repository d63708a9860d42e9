"""Choose an encoder for each table, by measurements of its rows, and make the config of all.

The encoder is the fastest one over a link, chosen by table as in SC'24 (Feng, Zhang et al.).
Shapes: blocks of [n, D] float32; a block is what one rank sends one peer for the table.
"""

import glob
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from torch import Tensor

from trec_qcomm.codecs import ErrorBounded, Identity
from trec_qcomm.codecs.error_bounded import Encoder
from trec_qcomm.config import Config, TableRule, UniqueBagsChoice, config_to_dict, write_yaml
from trec_qcomm.core.aligned import aligned
from trec_qcomm.core.codec import Codec, check_choice
from trec_qcomm.lab.preview.candidates import BASELINE
from trec_qcomm.lab.preview.measure import CodecPreview, TablePreview, preview_table
from trec_qcomm.lab.search.choices import Pair, config_of_all
from trec_qcomm.lab.search.choices import config_of as config_of_pairs

ENCODERS: tuple[Encoder, ...] = ("bitpack", "rans")  # vector_lz, in numpy, is never the fastest
_HEAD = ("table", "rows", "encoder", "ratio", "speed-up", "backward", "speed-up")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings that the choices depend on.

    Args:
        encoders: encoders to choose from.
        link_gb_s: GB/s that a rank can send.
        bound: relative error bound of the rows.
        unique_bags: whether a row that repeats in a block is sent once.
        backward: codec of the gradients.
    """

    encoders: tuple[Encoder, ...] = ENCODERS
    link_gb_s: float = 0.125
    bound: float = 0.01
    unique_bags: bool = True
    backward: Codec

    def __post_init__(self) -> None:
        for encoder in self.encoders:
            check_choice("encoders", encoder, get_args(Encoder))
        if not 0 < self.link_gb_s < math.inf:
            raise ValueError(f"link_gb_s: {self.link_gb_s} is not a finite number > 0")

    @property
    def forward(self) -> dict[str, Codec]:
        """Codecs of rows to choose from, by their names in candidates.py."""
        name = f"bound{100 * self.bound:g}%"
        codecs = (ErrorBounded(self.bound, encoder=encoder) for encoder in self.encoders)
        return {name if c.encoder == "bitpack" else f"{name}-{c.encoder}": c for c in codecs}


@dataclass(frozen=True, kw_only=True)
class TableChoice:
    """Codecs of one table.

    Args:
        figures: measurements of its rows.
        forward: codec of the rows: error_bounded, or identity if all encoders lose time.
        sent: figures of that codec.
        speed_up: speed-up over float32 of the fastest encoder.
        backward: codec of the gradients, or identity if it loses time.
        backward_speed_up: speed-up of that codec over float32, on as many values as rows have.
    """

    figures: TablePreview
    forward: Codec
    sent: CodecPreview
    speed_up: float
    backward: Codec
    backward_speed_up: float


def choose(figures: TablePreview, blocks: Sequence[Tensor], options: Options) -> TableChoice:
    """Choose the codecs of one table.

    The codec of gradients is timed on the rows: its size and speed do not depend on the values.

    Args: figures: measurements of the blocks, with all codecs of `options.forward`.
    """
    link, by_name = options.link_gb_s, {preview.codec: preview for preview in figures.codecs}
    speed_ups = {name: by_name[name].speed_up(link) for name in options.forward}
    best = max(speed_ups, key=lambda name: speed_ups[name])
    pays = speed_ups[best] > 1
    table, gradients = figures.table, {"backward": options.backward}
    (backward,) = preview_table(
        table, blocks, gradients, num_steps=1, distinct_rows=options.unique_bags
    ).codecs
    backward_speed_up = backward.speed_up(link)
    return TableChoice(
        figures=figures,
        forward=options.forward[best] if pays else Identity(),
        sent=by_name[best if pays else BASELINE],
        speed_up=speed_ups[best],
        backward=options.backward if backward_speed_up > 1 else Identity(),
        backward_speed_up=backward_speed_up,
    )


def config_text(
    choices: Sequence[TableChoice],
    options: Options,
    *,
    source: str,
    without_rows: Sequence[str] = (),
) -> str:
    """Return a complete config: one rule for all tables of equal codecs, tables by name.

    Args: source: name of the file of rows.  without_rows: tables without rows in the file.
    """
    notes = [
        f"Made by python -m trec_qcomm preview from {json.dumps(source, ensure_ascii=False)}.",
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
    merged: UniqueBagsChoice = "auto" if options.unique_bags else False
    pairs = {choice.figures.table: Pair(choice.forward, choice.backward) for choice in choices}
    config = config_of_pairs(pairs, config_of_all(Pair(), merged), merged)
    if not without_rows:
        return config
    rest = TableRule(
        tables=[glob.escape(table) for table in without_rows],
        forward=Identity(),
        backward=Identity(),
    )
    return replace(config, embedding=(*config.embedding, rest))


def choices_text(choices: Sequence[TableChoice]) -> str:
    """Return one line for each table: encoder, codec of gradients, their speed-up.

    Beside a choice of identity stands the speed-up, below 1, of the best coded choice.
    """
    lines = [_HEAD]
    for choice in choices:
        figures, codec = choice.figures, choice.forward
        lines.append((
            figures.table if figures.table.isprintable() else repr(figures.table),
            f"{figures.num_sent:.0f} of {figures.num_rows:.0f}",
            codec.encoder if isinstance(codec, ErrorBounded) else codec.name,
            f"{choice.sent.sent_nbytes / choice.sent.wire_nbytes:.2f}", f"{choice.speed_up:.2f}",
            choice.backward.name, f"{choice.backward_speed_up:.2f}",
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
