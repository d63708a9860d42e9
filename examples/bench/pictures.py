"""The pictures of the documents, drawn from records in one style.

  python -m examples.bench.pictures             draw all of them (`make pictures`)
  python -m examples.bench.pictures --check     exit status 1 if one shows other numbers

They are made to be read at 700 pixels. Their background is opaque, so a dark page does not change
them. Each PNG holds a hash of its numbers, which --check compares with that of the records.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from examples.bench.pages import BENCH, ROOT
from examples.bench.tables import RATES, spans_of
from examples.criteo.studies import gaps
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord, NetworkRecord, StudyRecord
from trec_qcomm.lab.report import style
from trec_qcomm.lab.report.figure import Figure
from trec_qcomm.lab.report.figures import figures_of
from trec_qcomm.lab.report.runs import runs_of
from trec_qcomm.lab.report.style import Looks

RESULTS = ROOT / BENCH
LINES = ("stock", "int8", "best", "auto")
BATCHES = (256, 2048)
BARS = ("stock", "int8", "unique_int4", "fast", "best")
LOOKS = Looks(("best", "int8", "fast", "auto"))
WIDTH = 7.0  # inches; 700 pixels show one at 100 dots
KINDS = {  # of traffic: words, colour, hatch
    "forward": ("rows", "#2f7f86", ""),
    "backward": ("gradients of rows", "#8cc5c6", "////"),
    "dense": ("dense gradients", "#98a1ab", ""),
    "ids": ("ids", "#c9a227", "...."),
    "headers": ("headers of packets", "#3b434c", ""),
}
PARTS = {  # of a step: words, colour, hatch
    "ids": ("ids", KINDS["ids"][1], ""),
    "lookup": ("lookup and update", "#332288", ""),
    "forward": ("forward", "#0072b2", ""),
    "codec": ("encode, decode", style.WARNING, ""),
    "backward": ("backward", "#7cc4ea", ""),
    "optimizer": ("optimizer", "#b0558b", ""),
    "rows": KINDS["forward"],
    "gradients": ("gradients of rows", KINDS["backward"][1], ""),
    "dense": KINDS["dense"],
}
LANES = ("computes", "all-to-all", "all-reduce")
TIMED = ("stock", "best")
NUM_COLORS = 128  # of a PNG, which makes it a third as large
HASH = "numbers"  # key of the hash in a PNG


def step_time() -> Figure:
    """Return the step over the link's rate, a panel a size of the batch."""
    runs = {
        (r.setup["batch_size"], r.configuration, r.rate): vars(r.step_s).values()
        for r in _read("auto", NetworkRecord)
        if (r.setup["plan"], r.setup["embedding_dim"], r.num_hosts) == ("table_wise", 16, 2)
    }
    rows = [(*key, *(round(1e3 * s) for s in seconds)) for key, seconds in runs.items()]
    rates = [rate for rate in RATES if any(rate == key[2] for key in runs)]

    def draw(canvas: Any) -> None:
        panels = canvas.subplots(1, len(BATCHES), sharex=True, sharey=True)
        for axes, batch_size in zip(panels, BATCHES, strict=True):
            style.grid(axes)
            axes.set_title(f"{batch_size} samples a host")
            axes.set_yscale("log")
            style.plain_ticks(axes.yaxis)
            for name in LINES:
                line = [r for r in rows if r[:2] == (batch_size, name)]
                line.sort(key=lambda r: rates.index(r[2]))
                at = [rates.index(r[2]) for r in line]
                axes.plot(at, [r[4] for r in line], **LOOKS[name].line, label=name)
                axes.vlines(at, [r[3] for r in line], [r[5] for r in line], LOOKS[name].color)
            axes.set_xticks(range(len(rates)), [RATES[r].replace(" ", "\n") for r in rates])
        canvas.get_layout_engine().set(wspace=0.06)
        panels[0].set_ylabel("step [ms]")
        canvas.supxlabel("rate of each host's link", fontsize=9.5)
        canvas.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)

    return _figure("step-time", rows, draw, 3.4)


def bytes_by_kind() -> Figure:
    """Return what a host sends in a step, by kind: in MB, and as shares."""
    runs = {
        run.configuration: run
        for run in runs_of(_read("links", NetworkRecord))
        if dict(run.setup.values)["plan"] == "table_wise" and run.rate_mbit is None
    }
    # Plain TorchRec counts nothing; it sends float32 of all bags, which the others count as raw.
    nbytes = {
        name: runs[name].by_group("wire_nbytes") or runs["int8"].by_group("raw_nbytes") or {}
        for name in BARS
    }
    kinds = {name: dict(by_kind) for name, by_kind in nbytes.items()}
    for name, by_kind in kinds.items():
        by_kind["headers"] = max(0.0, (runs[name].sent_nbytes or 0.0) - sum(by_kind.values()))
    rows: list[Any] = [
        (name, *(round(by_kind[kind]) for kind in KINDS)) for name, by_kind in kinds.items()
    ]

    def draw(canvas: Any) -> None:
        left, right = canvas.subplots(1, 2, sharey=True, width_ratios=(1.25, 1))
        for place, (_, *counts) in enumerate(rows):
            for axes, whole in ((left, 1e6), (right, sum(counts) / 100)):
                begin = 0.0
                for n, (_, color, hatch) in zip(counts, KINDS.values(), strict=True):
                    look = {"color": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0.4}
                    axes.barh(place, n / whole, 0.68, left=begin, **look)
                    begin += n / whole
            left.text(sum(counts) / 1e6, place, f" {sum(counts) / 1e6:.2f} MB", va="center")
        left.set_yticks(range(len(rows)), [row[0] for row in rows])
        left.set_xlim(0, 1.25 * max(sum(row[1:]) for row in rows) / 1e6)
        left.set_xlabel("sent by a host in a step [MB]")
        right.set_xlabel("share of these bytes [%]")
        left.invert_yaxis()
        for axes in (left, right):
            style.grid(axes, "x")
        _legend(canvas, KINDS, 5)

    return _figure("bytes-by-kind", rows, draw, 2.9)


def step_timeline() -> Figure:
    """Return what one step does at which time: what a rank computes, and what is on its link."""
    rows = []
    for r in _read("timeline", BenchRecord):
        spans = spans_of(r)
        rows.append((r.configuration, str(r.case["lane"]), str(r.case["part"]), spans))
    lengths = {name: spans[0][1] for name, _, part, spans in rows if part == "step"}

    def draw(canvas: Any) -> None:
        panels = canvas.subplots(len(TIMED), 1, sharex=True)
        for axes, name in zip(panels, TIMED, strict=True):
            style.grid(axes, "x")
            axes.set_title(f"{name}: {lengths[name]:.0f} ms")
            for configuration, lane, part, spans in rows:
                if configuration == name and part != "step":
                    bars = [(begin, end - begin) for begin, end in spans]
                    place = (LANES.index(lane) - 0.38, 0.76)
                    axes.broken_barh(bars, place, color=PARTS[part][1], linewidth=0.8)
            axes.axvline(lengths[name], color=style.MUTED, linewidth=1)
            axes.set_yticks(range(len(LANES)), ["computes", "all-to-all", "all-reduce"])
            axes.set_ylim(len(LANES) - 0.5, -0.5)
        panels[-1].set_xlim(0, 1.01 * max(lengths.values()))
        panels[-1].set_xlabel("time since the begin of the step [ms]")
        _legend(canvas, PARTS, 5)

    return _figure("step-timeline", rows, draw, 4.0)


def _legend(canvas: Any, looks: Mapping[str, tuple[str, str, str]], num_columns: int) -> None:
    """Put a legend of areas above the plots."""
    patch = style.matplotlib("patches").Patch
    handles = [
        patch(facecolor=color, hatch=hatch, edgecolor="white", linewidth=0, label=words)
        for words, color, hatch in looks.values()
    ]
    options = {"ncols": num_columns, "columnspacing": 1.0, "handlelength": 1.4}
    canvas.legend(handles=handles, loc="outside upper center", **options)


def _read(name: str, kind: type[Any]) -> list[Any]:
    """Return a file's records of one kind."""
    return [r for r in records.read(RESULTS / f"{name}.jsonl") if isinstance(r, kind)]


def _figure(key: str, rows: Sequence[Any], draw: Callable[[Any], None], height: float) -> Figure:
    """Return a figure of the common width. Args: height: inches."""
    return Figure(key=key, title="", columns=(), rows=rows, draw=draw, size=(WIDTH, height))


def reported(key: str) -> Figure:
    """Return a figure of the quality gate as `trec_qcomm report` draws it, in the common width."""
    gate = [
        ROOT / "examples" / "criteo" / "results" / f"{name}.jsonl" for name in ("dense", "best")
    ]
    figures = figures_of(records.read_all([RESULTS / "links.jsonl", *gate]))
    (chosen,) = (figure for figure in figures if figure.key == key)
    return replace(chosen, size=(WIDTH, chosen.size[1]))


def length() -> Figure:
    """Return the gap to float32 along long trainings."""
    return replace(gaps.picture(_read("length", StudyRecord)), title="")


PICTURES: dict[str, Callable[[], Figure]] = {
    "length": length,
    "step-time": step_time,
    "step-timeline": step_timeline,
    "bytes-by-kind": bytes_by_kind,
    "quality": partial(reported, "quality"),
    "rate-distortion": partial(reported, "rate-distortion"),
}


def drawn(key: str, folder: Path) -> Path:
    """Draw a picture with the hash of its numbers, and return its path."""
    figure, path = PICTURES[key](), folder / f"{key}.png"
    style.render(figure, folder)
    with image_file().open(path) as image:
        noted = importlib.import_module("PIL.PngImagePlugin").PngInfo()
        noted.add_text(HASH, hash_of(figure))
        image.convert("RGB").quantize(NUM_COLORS).save(path, pnginfo=noted, optimize=True)
    return path


def is_current(key: str, folder: Path = RESULTS) -> bool:
    """Return whether a picture was drawn from today's records."""
    with image_file().open(folder / f"{key}.png") as image:
        return bool(image.info.get(HASH) == hash_of(PICTURES[key]()))


def hash_of(figure: Figure) -> str:
    """Return a hash of a figure's numbers."""
    return hashlib.sha256(json.dumps(figure.rows).encode()).hexdigest()


def image_file() -> Any:
    """Return Pillow's module of images, which matplotlib brings along."""
    return importlib.import_module("PIL.Image")


def main() -> int:
    """Draw or check; the exit status is 1 where a picture shows other numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    if parser.parse_args().check:
        old = [key for key in PICTURES if not is_current(key)]
        print(f"not of today's records: {', '.join(old)}" if old else "all pictures are current")
        return int(bool(old))
    for key in PICTURES:
        print(drawn(key, RESULTS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
