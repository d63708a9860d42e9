"""Shadow curves: decibels against bits of the codecs that were tried on the noisiest tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from trec_qcomm.lab.debug.recorded.noise import Tried, noisiest, tried_of
from trec_qcomm.lab.debug.recorded.run import DebugRun, Place
from trec_qcomm.lab.report.figure import Cell, Figure, short
from trec_qcomm.lab.report.style import THEIRS, Looks, grid

MOST = 8
DB_OF_A_BIT = 6.0206  # 20 log10(2): the error halves


def build(run: DebugRun, *, title: str, suffix: str) -> list[Figure]:
    """Return a panel for each direction; none without shadows."""
    tried = {place: codecs for place, codecs in tried_of(run).items() if len(codecs) > 1}
    ordered = [line.place for line in noisiest(run) if line.place in tried]
    ordered += [place for place in tried if place not in ordered]
    by_direction: dict[str, list[Place]] = {}
    for place in sorted(ordered, key=lambda place: place.order):
        by_direction.setdefault(place.direction, []).append(place)
    if not by_direction:
        return []
    drawn = {direction: places[:MOST] for direction, places in by_direction.items()}
    num_left_out = len(ordered) - sum(map(len, drawn.values()))
    return [
        Figure(
            key=f"debug-shadows{suffix}",
            title=f"What other codecs would do{title}",
            caption=(
                "A line is a table, a point a codec on its values: bits that a value takes, and "
                "the signal to noise that arrives, medians over the measured steps. The large "
                "point is the codec in use, the others are shadows: encoded, decoded and thrown "
                "away. Higher at equal bits is better. The grey line has the slope of 6 dB a bit: "
                "a table whose line is flatter gains little from more bits, one far below the "
                "others needs them."
            ),
            alt=f"Decibels against bits of {len(ordered)} tables and gradients.",
            columns=("name", "direction", "codec", "in use", "bits a value", "dB"),
            rows=[row for place in ordered for row in _rows(place, tried[place])],
            draw=lambda canvas: _draw(canvas, drawn, tried),
            size=(4.6 + 4.6 * (len(drawn) - 1) + 2.0, 3.8),
            notes=[f"{num_left_out} more are in the table alone."] if num_left_out else [],
        )
    ]  # fmt: skip


def _rows(place: Place, codecs: Sequence[Tried]) -> list[Sequence[Cell]]:
    return [
        (place.name, place.direction, c.codec, "yes" if c.is_used else "no", c.bits, c.decibels)
        for c in codecs
    ]


def _draw(
    canvas: Any,
    places_by_direction: Mapping[str, Sequence[Place]],
    tried: Mapping[Place, Sequence[Tried]],
) -> None:
    panels = canvas.subplots(1, len(places_by_direction), squeeze=False)[0]
    for axes, (direction, places) in zip(panels, places_by_direction.items(), strict=True):
        looks = Looks(str(place) for place in places)
        axes.set_title(direction)
        for place in places:
            look, codecs = looks[str(place)], tried[place]
            bits, noise = [c.bits for c in codecs], [c.decibels for c in codecs]
            axes.plot(
                bits, noise, color=look.color, linestyle=look.dash, marker=look.marker,
                markersize=4, linewidth=1.2, label=short(place.name, 24),
            )  # fmt: skip
            used = [c for c in codecs if c.is_used]
            axes.plot(
                [c.bits for c in used], [c.decibels for c in used], color=look.color,
                linestyle="none", marker=look.marker, markersize=9,
            )  # fmt: skip
        low, high = axes.get_xlim()
        bottom = axes.get_ylim()[0]
        ends = [bottom, bottom + DB_OF_A_BIT * (high - low)]
        top = axes.get_ylim()[1]
        axes.plot([low, high], ends, color=THEIRS, linewidth=0.8, linestyle="--")
        axes.set_ylim(bottom, top)
        axes.set_xlabel("bits a value")
        axes.set_ylabel("signal to noise [dB]")
        grid(axes)
        axes.legend(loc="lower right", fontsize=8)
