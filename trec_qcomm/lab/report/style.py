"""How figures look: one colour, marker and dash for each configuration; SVG and PNG.

Knows: matplotlib, which is imported only here. Colours are told apart by the colour-blind (after
Okabe and Ito, and Tol), and never carry a meaning alone. In the page they are CSS variables, so
that light and dark have their own; a PNG is light.
"""

import html
import importlib
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trec_qcomm.lab.report.figure import Figure

INK, MUTED, GRID, BAND = "#1f2328", "#59636e", "#d1d9e0", "#eaeef2"
OURS, THEIRS = "#0072b2", "#8c959f"  # colours of codecs
# Colours of the dark theme, by the colour of the light one.
DARK = {
    INK: "#e6edf3", MUTED: "#a3adb8", GRID: "#3a424c", BAND: "#262d36", THEIRS: "#768390",
    "#0072b2": "#58b2f0", "#d55e00": "#ff8f4d", "#009e73": "#35d1a5", "#b0558b": "#e8a0cb",
    "#a87900": "#e8bd4f", "#332288": "#9d94f5", "#3d9bd0": "#a5dcff", "#882255": "#dd74a5",
    "#6e7781": "#9aa4ae", "#98a1ab": "#6f7984",
}  # fmt: skip
_BASES = {"stock": INK, "fp32": INK, "stock_fp16": "#6e7781", "stock_int8": "#98a1ab"}
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#b0558b", "#a87900", "#332288", "#3d9bd0", "#882255")
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
_DPI = 110
DIGEST = "numbers-sha256"  # the text of a PNG that says which numbers it shows


@dataclass(frozen=True)
class Look:
    """Colour, marker and dash of a configuration."""

    color: str
    marker: str
    dash: Any


class Looks:
    """Looks of all configurations: baselines are grey, the others coloured in the order given."""

    def __init__(self, configurations: Iterable[str]) -> None:
        self._looks: dict[str, Look] = {}
        number = 0
        for name in dict.fromkeys(configurations):
            if name in _BASES:
                marker = _MARKERS[list(_BASES).index(name) % len(_MARKERS)]
                self._looks[name] = Look(
                    _BASES[name], marker, _DASHES[2] if name != "stock" else "-"
                )
                continue
            place, turn = number % len(_COLORS), number // len(_COLORS)
            marker = _MARKERS[(place + turn) % len(_MARKERS)]
            self._looks[name] = Look(_COLORS[place], marker, _DASHES[turn % len(_DASHES)])
            number += 1

    def __getitem__(self, name: str) -> Look:
        return self._looks[name]


def matplotlib() -> Any:
    """Return the module, set up without a display. Raises ValueError: it is not installed."""
    try:
        module = importlib.import_module("matplotlib")
    except ImportError:
        raise ValueError("matplotlib is not installed: pip install 'matplotlib>=3.8'") from None
    module.use("Agg")
    return module


def render(figure: Figure, png: Path | None) -> str:
    """Return the figure as <svg> for a page, and write a PNG into the folder, if there is one."""
    package = matplotlib()
    with package.rc_context(_RC | {"svg.hashsalt": figure.key}):
        canvas = importlib.import_module("matplotlib.figure").Figure(
            figsize=figure.size, layout="constrained"
        )
        figure.draw(canvas)
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        canvas.savefig(file, format="svg", transparent=True, metadata=nothing)
        if png is not None:
            _write_png(canvas, figure, png)
    return _for_page(file.getvalue(), figure)


def _write_png(canvas: Any, figure: Figure, folder: Path) -> None:
    """Write a PNG of 48 colours, which is enough and a quarter of the size."""
    file = io.BytesIO()
    canvas.savefig(file, format="png", dpi=_DPI, metadata={"Software": None})
    image = importlib.import_module("PIL.Image")  # matplotlib brings it
    file.seek(0)
    with image.open(file) as full:
        few = full.convert("RGB").quantize(
            48, method=image.Quantize.FASTOCTREE, dither=image.Dither.NONE
        )
    info = importlib.import_module("PIL.PngImagePlugin").PngInfo()
    info.add_text(DIGEST, figure.digest)
    few.save(folder / f"{figure.key}.png", format="PNG", optimize=True, pnginfo=info)


def grid(axes: Any, axis: str = "both") -> None:
    """Draw fine lines behind the data."""
    axes.grid(True, axis=axis)
    axes.tick_params(length=0)


def square(x: float, y: float, color: str) -> Any:
    """Return a patch of size 1 with its corner at (x, y)."""
    patches = importlib.import_module("matplotlib.patches")
    return patches.Rectangle((x, y), 1, 1, facecolor=color, edgecolor="#ffffff", linewidth=0.6)


def squares(colors: Sequence[Sequence[str]]) -> Any:
    """Return a collection of squares of size 1, colors[y][x] with its corner at (x, y)."""
    corners = [
        ((x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1))
        for y, row in enumerate(colors) for x in range(len(row))
    ]  # fmt: skip
    return importlib.import_module("matplotlib.collections").PolyCollection(
        corners, facecolors=[color for row in colors for color in row], edgecolors="#ffffff",
        linewidths=0.6,
    )  # fmt: skip


_STOPS = ("#00224e", "#434e6c", "#7d7c78", "#bcae6c", "#fee838")  # matplotlib's cividis
_NO_HEAT = "#c9ced6"


def heat_color(place: float | None) -> str:
    """Return a colour of a heat map: 0 is dark, 1 is light, None is grey."""
    if place is None:
        return _NO_HEAT
    place = min(max(place, 0.0), 1.0)
    index = min(int(place * (len(_STOPS) - 1)), len(_STOPS) - 2)
    part = place * (len(_STOPS) - 1) - index
    pair = [[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in _STOPS[index : index + 2]]
    mixed = [round(a + (b - a) * part) for a, b in zip(*pair, strict=True)]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def luminance(color: str) -> float:
    """Return how light a colour is, from 0 to 1."""
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def plain_ticks(axis: Any, subs: tuple[float, ...] = (1, 2, 5)) -> None:
    """Write the ticks of a log axis as plain numbers: 0.5, 1, 2, 5, 10 and so on."""
    ticker = importlib.import_module("matplotlib.ticker")
    axis.set_major_locator(ticker.LogLocator(subs=subs))
    axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.set_minor_locator(ticker.NullLocator())


def label_points(axes: Any, points: Iterable[tuple[float, float, str, str]]) -> None:
    """Write names beside points, where they hide none of the others.

    The layout has to be settled before.

    Args: points: x, y, name and colour of each.
    """
    points = list(points)
    pixels = [axes.transData.transform(point[:2]) for point in points]
    scale, frame = axes.figure.dpi / 72, axes.bbox.extents
    taken = [(x - 6 * scale, y - 6 * scale, x + 6 * scale, y + 6 * scale) for x, y in pixels]
    for (x, y), (at, height, name, color) in zip(pixels, points, strict=True):
        width, tall = 5.1 * len(name) * scale, 10 * scale
        places = [
            (dx * scale, dy * scale, align)
            for reach in (0, 9, 18, 27)
            for dx, dy, align in (
                (8, 3 + reach, "left"), (8, -11 - reach, "left"),
                (-8, 3 + reach, "right"), (-8, -11 - reach, "right"),
            )
        ]  # fmt: skip
        boxes = [_box(x + dx, y + dy, width, tall, align) for dx, dy, align in places]
        inside = (n for n, box in enumerate(boxes) if _holds(frame, box))
        free = (n for n in inside if not any(_overlap(boxes[n], other) for other in taken))
        chosen = next(free, 0)
        taken.append(boxes[chosen])
        dx, dy, align = places[chosen]
        axes.annotate(
            name, (at, height), xytext=(dx / scale, dy / scale), textcoords="offset points",
            ha=align, fontsize=8.5, color=color,
        )  # fmt: skip


Box = tuple[float, float, float, float]  # left, bottom, right, top


def _box(x: float, y: float, width: float, height: float, align: str) -> Box:
    left = x if align == "left" else x - width
    return left, y, left + width, y + height


def _holds(a: Box, b: Box) -> bool:
    return a[0] <= b[0] and a[1] <= b[1] and b[2] <= a[2] and b[3] <= a[3]


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _for_page(svg: str, figure: Figure) -> str:
    """Return the <svg> alone, for a page: no prolog, no namespaces, no metadata, no fixed size.

    Ids begin with the figure's key, and colours are CSS variables.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href=", "href=")
    prefix = f"{figure.key}-"
    svg = re.sub(r'(\sid=")', rf"\g<1>{prefix}", svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", svg)
    svg = re.sub('font-family: [^;"]*;?', "", svg)
    for color in DARK:
        svg = re.sub(f"{color}\\b", f"var({variable(color)})", svg, flags=re.IGNORECASE)
    head, _, body = svg.partition(">")
    box = head[head.index("viewBox") :].split('"')[1]
    width, label = round(figure.size[0] * 96), html.escape(figure.alt)
    whole = f'<svg viewBox="{box}" width="{width}" role="img" aria-label="{label}">{body}'
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f]", "\ufffd", whole).strip()


def variable(color: str) -> str:
    """Return the name of the CSS variable of a colour in the light theme."""
    return f"--c{color[1:]}"
