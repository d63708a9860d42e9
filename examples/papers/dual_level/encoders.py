"""The encoder of each table by modelled speed-up, and what the training would gain.

Knows: ratio and speed of the library's encoders on this machine, the selector. Does not know: a
network: a link is a number of bytes a second. Shapes: batches of [n, D] float32 a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from examples.papers.dual_level.ratio import ENCODERS
from trec_qcomm.codecs import ErrorBounded
from trec_qcomm.lab.preview.selector import Measurement, measure, select

ALL_TO_ALL_SHARE = 0.6  # of the step in float32; assumed


def measured(
    tables: Mapping[str, Sequence[Tensor]], bounds: Mapping[str, float]
) -> dict[str, dict[str, Measurement]]:
    """Return ratio and speed of each encoder by table. Args: bounds: relative bound by table."""
    return {
        table: {name: measure(_codec(bounds[table], name), batches) for name in ENCODERS}
        for table, batches in tables.items()
    }


def _codec(bound: float, encoder: str) -> ErrorBounded:
    return ErrorBounded(bound, encoder=encoder)  # type: ignore[arg-type]


def on_link(by_table: Mapping[str, Mapping[str, Measurement]], gbit_s: float) -> dict[str, float]:
    """Return the forward all-to-all's modelled speed-up over float32, and what chose it.

    speed_up_ENCODER: one encoder for all tables; speed_up_choice: the fastest for each table;
    tables_ENCODER: tables that take it; ratio_choice: harmonic mean of their ratios.
    """
    link = gbit_s / 8
    chosen = {table: select(each, link_gb_s=link) for table, each in by_table.items()}
    values = {
        f"speed_up_{name}": _harmonic([each[name].speed_up(link) for each in by_table.values()])
        for name in ENCODERS
    }
    values["speed_up_choice"] = _harmonic([choice.speed_up for choice in chosen.values()])
    values["ratio_choice"] = _harmonic(
        [by_table[table][choice.name].compression_ratio for table, choice in chosen.items()]
    )
    for name in ENCODERS:
        values[f"tables_{name}"] = sum(choice.name == name for choice in chosen.values())
    return values


def end_to_end(forward_speed_up: float, share: float = ALL_TO_ALL_SHARE) -> float:
    """Return the speed-up of a step whose forward all-to-all alone is coded.

    Args: share: share of a float32 step that is all-to-all, a half of it forward, none hidden.
    """
    return 1 / (1 - share / 2 + share / 2 / forward_speed_up)


def _harmonic(numbers: Sequence[float]) -> float:
    """Return the harmonic mean: tables have as many bytes, so seconds add."""
    return len(numbers) / sum(1 / number for number in numbers)
