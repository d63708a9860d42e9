"""How figures look: one colour, marker and dash for each configuration; SVG and PNG.

Knows: matplotlib, which is imported only here. Colours are told apart by the colour-blind (after
Okabe and Ito, and Tol), and never carry a meaning alone.
"""

import importlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trec_qcomm.lab.report.figure import Figure

INK, MUTED, GRID, BAND = "#1f2328", "#59636e", "#d1d9e0", "#eaeef2"
OURS, THEIRS, WARNING = "#0072b2", "#8c959f", "#d55e00"
_BASES = {"stock": INK, "fp32": INK, "stock_fp16": "#6e7781", "stock_int8": "#98a1ab"}
_COLORS = (OURS, WARNING, "#009e73", "#b0558b", "#a87900", "#332288", "#3d9bd0", "#882255")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_RC = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 9.5, "axes.titlesize": 10,
    "axes.titlelocation": "left", "axes.titleweight": "bold",
    "axes.edgecolor": MUTED, "axes.labelcolor": INK, "axes.titlecolor": INK, "text.color": INK,
    "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "grid.color": GRID, "grid.linewidth": 0.8, "legend.frameon": False, "legend.fontsize": 9,
    "lines.linewidth": 1.8, "lines.markersize": 6, "hatch.linewidth": 0.6,
    "font.family": ["DejaVu Sans"],
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """Colour, marker and dash of a configuration."""

    color: str
    marker: str
    dash: Any

    @property
    def line(self) -> dict[str, Any]:
        """Keywords of matplotlib's plot."""
        return {"color": self.color, "marker": self.marker, "linestyle": self.dash}


class Looks:
    """Looks of all configurations: baselines are grey, the others coloured in the order given."""

    def __init__(self, configurations: Iterable[str] = ()) -> None:
        self._looks = {
            name: Look(color, _MARKERS[number], "-" if name == "stock" else _DASHES[2])
            for number, (name, color) in enumerate(_BASES.items())
        }
        for name in configurations:
            self[name]

    def __getitem__(self, name: str) -> Look:
        if name not in self._looks:
            turn, place = divmod(len(self._looks) - len(_BASES), len(_COLORS))
            marker = _MARKERS[(place + turn) % len(_MARKERS)]
            self._looks[name] = Look(_COLORS[place], marker, _DASHES[turn % len(_DASHES)])
        return self._looks[name]


def matplotlib(module: str = "") -> Any:
    """Return matplotlib or a module of it, without a display.

    Raises: ValueError: it is not installed.
    """
    try:
        importlib.import_module("matplotlib").use("Agg")
    except ImportError:
        raise ValueError("matplotlib is not installed: pip install 'matplotlib>=3.8'") from None
    return importlib.import_module(f"matplotlib.{module}" if module else "matplotlib")


def render(figure: Figure, png: Path | None) -> str:
    """Return the figure as <svg> for a page, and write a PNG into the folder, if there is one."""
    with matplotlib().rc_context(_RC | {"svg.hashsalt": figure.key}):
        canvas = matplotlib("figure").Figure(figsize=figure.size, layout="constrained")
        figure.draw(canvas)
        file = io.StringIO()
        canvas.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        if png is not None:
            canvas.savefig(png / f"{figure.key}.png", dpi=200, pil_kwargs={"optimize": True})
    svg = file.getvalue()
    return svg[svg.index("<svg") :]


def grid(axes: Any, axis: str = "both") -> None:
    """Draw fine lines behind the data."""
    axes.grid(True, axis=axis)
    axes.tick_params(length=0)


def legend_beside(axes: Any, *others: Any) -> None:
    """Put the legend of one or several plots to the right of the first one, each name once."""
    labelled = [plot.get_legend_handles_labels() for plot in (axes, *others)]
    entries = {n: h for handles, names in labelled for h, n in zip(handles, names, strict=True)}
    axes.legend(entries.values(), entries, loc="center left", bbox_to_anchor=(1.01, 0.5))


def plain_ticks(axis: Any, subs: tuple[float, ...] = (1, 2, 5)) -> None:
    """Write the ticks of a log axis as plain numbers: 0.5, 1, 2, 5, 10 and so on."""
    ticker = matplotlib("ticker")
    axis.set_major_locator(ticker.LogLocator(subs=subs))
    axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.set_minor_locator(ticker.NullLocator())


def signed_log(axes: Any, axis: str, linear: float) -> None:
    """Make an axis of changes linear up to a number, and logarithmic beyond, with plain ticks."""
    getattr(axes, f"set_{axis}scale")("symlog", linthresh=linear, linscale=2)
    low, high = getattr(axes, f"get_{axis}lim")()
    powers = [linear * 10.0**n for n in range(8)]
    ticks = [tick for tick in (*(-p for p in powers), 0, *powers) if low <= tick <= high]
    getattr(axes, f"set_{axis}ticks")(ticks, [f"{tick:g}" for tick in ticks])
    getattr(axes, f"set_{axis}lim")(low, high)
    axes.minorticks_off()
