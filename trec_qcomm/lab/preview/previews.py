"""Preview, the figures of every codec on the rows of a few steps, as text and as records."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import yaml

from trec_qcomm.config import codec_to_dict
from trec_qcomm.core.codec import Codec
from trec_qcomm.lab.preview.file import CapturedRows
from trec_qcomm.lab.preview.measure import CodecPreview, TablePreview, preview_table
from trec_qcomm.lab.preview.text import GBIT_OF_GB, direction_text
from trec_qcomm.lab.records import BenchRecord, Environment

CodecsByDirection = Mapping[str, Mapping[str, Codec]]  # "forward" or "backward", then by name


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Figures of all codecs on all tables.

    Args:
        captured: the rows.
        codecs: the codecs, by direction and name.
        tables: the figures, by direction.
    """

    captured: CapturedRows
    codecs: CodecsByDirection
    tables: Mapping[str, Sequence[TablePreview]]

    def text(self, *, top: int) -> str:
        """Return the tables of both directions. Args: top: number of tables to show."""
        unit = self.captured.unit
        parts = [direction_text(tables, unit=unit, top=top) for tables in self.tables.values()]
        return "\n\n".join([*parts, *self._notes()])

    def _notes(self) -> list[str]:
        captured, notes = self.captured, []
        if captured.num_left_out:
            notes.append(
                f"The capture had no room for {captured.num_left_out} rows: tables that sent most "
                "show too few bytes. Give capture_rows a larger max_nbytes."
            )
        if captured.without_rows:
            notes.append(f"Without rows, and not shown: {', '.join(captured.without_rows)}.")
        if "forward" not in captured.blocks:
            notes.append("This rank holds no table, so it sends gradients and no rows.")
        if "backward" not in captured.blocks:
            notes.append("No gradients: capture_rows(steps, gradients=True) keeps them.")
        return notes

    def records(self, source: str) -> list[BenchRecord]:
        """Return a record for each table, direction and codec. Args: source: name of the rows."""
        environment, now = Environment.current(), time.time()
        return [
            BenchRecord(
                configuration=codec.codec,
                config=_yaml(self.codecs[direction][codec.codec]),
                setup={"rows": source},
                environment=environment,
                time=now,
                bench="preview",
                case={
                    "table": table.table, "direction": direction, "dim": table.dim,
                    "unit": self.captured.unit,
                },
                figures=_figures(table, codec),
            )
            for direction, tables in self.tables.items()
            for table in tables
            for codec in table.codecs
        ]  # fmt: skip


def _figures(table: TablePreview, codec: CodecPreview) -> dict[str, float | bool]:
    """Return the numbers of a record. JSON has no inf: what is exact has no dB."""
    noise = codec.signal_to_noise_db
    decibels = {"signal_to_noise_db": noise} if math.isfinite(noise) else {}
    return decibels | {
        "is_exact": noise == math.inf,
        "num_rows": table.num_rows,
        "num_sent": table.num_sent,
        "num_nonfinite": table.num_nonfinite,
        "raw_nbytes": codec.raw_nbytes,
        "wire_nbytes": codec.wire_nbytes,
        "encode_s": codec.encode_s,
        "decode_s": codec.decode_s,
        "break_even_gbit_s": GBIT_OF_GB * codec.break_even_gb_s,
    }


def _yaml(codec: Codec) -> str:
    text: str = yaml.safe_dump(codec_to_dict(codec), default_flow_style=True, sort_keys=False)
    return text.strip()


def make_preview(
    captured: CapturedRows,
    codecs: CodecsByDirection,
    *,
    distinct_rows: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Preview:
    """Measure all codecs on all tables, on one thread.

    Args:
        captured: the rows.
        codecs: codecs by direction and name; each direction that was captured.
        distinct_rows: whether a row that repeats in a block is sent once; gradients always are
            taken as they are.
        progress: function that is told which table is next.
    Raises: ValueError: a codec does not take a table's rows; it names both.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tables = {
            direction: [
                _table(captured, direction, table, codecs[direction], distinct_rows, progress)
                for table in blocks
            ]
            for direction, blocks in captured.blocks.items()
        }
    finally:
        torch.set_num_threads(num_threads)
    return Preview(captured=captured, codecs=codecs, tables=tables)


def _table(
    captured: CapturedRows,
    direction: str,
    table: str,
    codecs: Mapping[str, Codec],
    distinct_rows: bool,
    progress: Callable[[str], None],
) -> TablePreview:
    tables = captured.blocks[direction]
    number = list(tables).index(table) + 1
    first = "; the first time on a machine kernels are compiled, about a minute" * (number == 1)
    progress(f"{direction}, {number} of {len(tables)}: {table}{first}")
    return preview_table(
        table,
        tables[table],
        codecs,
        direction=direction,
        num_steps=captured.num_steps or len(tables[table]),
        distinct_rows=distinct_rows and direction == "forward",
    )
