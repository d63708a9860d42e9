"""Throughput of codecs: bars of what they encode and decode in a second, ours and others'."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from trec_qcomm.report.figure import Cell, Figure, Finding, short, verdict
from trec_qcomm.report.records import Record
from trec_qcomm.report.style import INK, OURS, THEIRS, grid

Name = tuple[str, float | None]  # of a codec, and its bound
_SHADES = (1.0, 0.6, 0.4, 0.25)  # of the first number of threads, the second, ...


@dataclass(frozen=True, order=True)
class Place:
    """What is compared with one another. Args: seed: of the training that made the rows."""

    kind: str
    dim: int
    data: str
    seed: int
    hardware: str

    def __str__(self) -> str:
        return f"{self.kind}, dim {self.dim}"

    @property
    def origin(self) -> str:
        """What is the same for most, in words."""
        return ", ".join(filter(None, (self.data, f"seed {self.seed}", self.hardware)))


def build(records: Sequence[Record]) -> list[Figure]:
    """A figure a place; of equal measurements the last counts, and the others are told."""
    latest: dict[tuple[Place, int, Name], Record] = {}
    places: dict[Place, list[Record]] = {}
    earlier: dict[Place, list[Record]] = {}
    for record in records:
        if record.kind == "codec":
            place = _place(record)
            key = (place, record["threads"], _name(record))
            if key in latest:
                places[place].remove(latest[key])
                earlier.setdefault(place, []).append(latest[key])
            latest[key] = record
            places.setdefault(place, []).append(record)
    names = list(map(str, places))
    titles = {p: f"{p} ({p.origin})" if names.count(str(p)) > 1 else str(p) for p in places}
    return [
        _figure(
            titles[place], place, places[place], earlier.get(place, ()),
            "codecs" if number == 1 else f"codecs-{number}",
        )
        for number, place in enumerate(sorted(places), start=1)
    ]  # fmt: skip


def _figure(
    title: str, place: Place, records: Sequence[Record], earlier: Sequence[Record], key: str
) -> Figure:
    records = sorted(records, key=lambda r: (int(r["threads"]), -float(r["encode_gb_s"]["p50"])))
    threads = sorted({r["threads"] for r in records})
    return Figure(
        key=key,
        title=f"Codec throughput: {title}",
        caption=(
            "GB of float32 that a codec encodes (left) and decodes (right) in a second: longer is "
            "better. Blue bars with a star are ours, grey ones other libraries'; the paler of two "
            "bars is of more threads; whiskers go from the 20th to the 80th percentile. The number "
            "at the bar is the compression ratio: a fast codec with a small ratio, or a slow one "
            "with a large, may both lose."
        ),
        alt=_alt(title, records),
        columns=(
            "threads", "codec", "ours", "ratio", "encode p20 [GB/s]", "encode p50", "encode p80",
            "decode p20 [GB/s]", "decode p50", "decode p80", "error over bound",
            "break-even link [GB/s]",
        ),
        rows=[_row(r, _labels(records)[_name(r)]) for r in records],
        draw=lambda canvas: _draw(canvas, records, threads),
        size=(9.2, 1.6 + 0.27 * len({_name(r) for r in records})),
        notes=(
            "Break-even link: the rate up to which encoding, sending and decoding takes less than "
            "sending float32. Throughput is of the machine in the records: compare within. Of "
            f"{place.origin}.",
            *_again(earlier),
        ),
        findings=_findings(title, records),
    )  # fmt: skip


def _place(record: Record) -> Place:
    hardware = record.get("hardware")
    if isinstance(hardware, Mapping):
        machine = ", ".join(f"{name} {value}" for name, value in sorted(hardware.items()))
    else:
        machine = "" if hardware is None else json.dumps(hardware)
    return Place(
        record["kind"], record["dim"], str(record.get("data", "")), int(record.get("seed", 0)),
        machine,
    )  # fmt: skip


def _again(earlier: Sequence[Record]) -> list[str]:
    if not earlier:
        return []
    commits = ", ".join(dict.fromkeys(str(r.get("commit", "not known")) for r in earlier))
    return [f"{len(earlier)} measured again later are not shown (commit {commits})."]


def _name(record: Record) -> Name:
    """What tells bars of a figure apart."""
    return record["name"], record.get("bound")


def _labels(records: Sequence[Record]) -> dict[Name, str]:
    """Its name, and its bound where others bear the name."""
    every = list(dict.fromkeys(map(_name, records)))
    names = [name for name, _ in every]
    return {
        (name, bound): f"{name} at {bound:g}" if names.count(name) > 1 and bound else name
        for name, bound in every
    }


def _threads(number: int) -> str:
    return f"{number} thread{'s' * (number > 1)}"


def _row(record: Record, label: str) -> Sequence[Cell]:
    speeds = [
        record[f"{way}_gb_s"][p] for way in ("encode", "decode") for p in ("p20", "p50", "p80")
    ]
    return (
        record["threads"], label, "yes" if record["ours"] else "no", record["ratio"],
        *speeds, record.get("error_over_bound"), record.get("break_even_gb_s"),
    )  # fmt: skip


def front(records: Sequence[Record]) -> list[Name]:
    """Our codecs that no other of the same place beats in both ratio and speed of encoding."""
    points = {_name(r): (float(r["ratio"]), float(r["encode_gb_s"]["p50"])) for r in records}
    return [
        _name(r) for r in records
        if r["ours"] and not any(
            ratio >= points[_name(r)][0] and speed >= points[_name(r)][1]
            for name, (ratio, speed) in points.items() if name != _name(r)
        )
    ]  # fmt: skip


def _findings(where: str, records: Sequence[Record]) -> list[Finding]:
    """The front has no mark: one of ours with a large ratio, of whatever error, is always on it."""
    found = []
    threads = min(r["threads"] for r in records)
    own = [r for r in records if r["threads"] == threads]
    ours, best = [r for r in own if r["ours"]], [_labels(own)[name] for name in front(own)]
    if ours and len(own) > len(ours):
        text = (
            f"{where}, {_threads(threads)}: of {len(own)} codecs, none beats these of our "
            f"{len(ours)} in both ratio and speed of encoding: {', '.join(best) or 'none'} (errors "
            "differ, see the table)."
        )
        found.append(Finding(text))
    bounded = [
        r for r in records
        if r["ours"] and isinstance(r.get("error_over_bound"), int | float)
    ]  # fmt: skip
    if bounded:
        worst = max(bounded, key=lambda r: float(r["error_over_bound"]))
        over = float(worst["error_over_bound"])
        text = f"{where}: the largest error of ours is {over:.4f} of the bound ({worst['name']})."
        found.append(Finding(text, verdict(over <= 1)))
    return found


def _alt(where: str, records: Sequence[Record]) -> str:
    speeds = [float(r["encode_gb_s"]["p50"]) for r in records if r["ours"]]
    ours = f" Median of ours to encode {median(speeds):.2f} GB/s." if speeds else ""
    what = f"{len(records)} measurements of {where}"
    return f"Bars of encode and decode speed, {what}.{ours}"


def _draw(canvas: Any, records: Sequence[Record], threads: Sequence[int]) -> None:
    names, said = list(dict.fromkeys(map(_name, records))), _labels(records)
    labels = {
        _name(r): ("* " if r["ours"] else "") + short(said[_name(r)], 34) for r in records
    }  # fmt: skip
    left, right = canvas.subplots(1, 2)
    for axes, way in ((left, "encode"), (right, "decode")):
        axes.set_title(way)
        _bars(axes, records, f"{way}_gb_s", names, threads)
        axes.set_xlabel("GB of float32 a second")
    left.set_yticks(range(len(names)), [labels[name] for name in names])
    right.set_yticks(range(len(names)), [""] * len(names))
    if len(threads) > 1:
        right.legend(loc="lower right")


def _bars(
    axes: Any,
    records: Sequence[Record],
    field: str,
    names: Sequence[tuple[str, Any]],
    threads: Sequence[int],
) -> None:
    most, height = max(r[field]["p80"] for r in records), 0.8 / len(threads)
    for number, count in enumerate(threads):
        shade = _SHADES[min(number, len(_SHADES) - 1)]
        axes.barh([0], [0], color=OURS, alpha=shade, label=f"ours, {_threads(count)}")
        for record in (r for r in records if r["threads"] == count):
            speed, color = record[field], OURS if record["ours"] else THEIRS
            place = names.index(_name(record)) - 0.4 + (number + 0.5) * height
            axes.barh(place, speed["p50"], height=0.9 * height, color=color, alpha=shade)
            axes.plot([speed["p20"], speed["p80"]], [place, place], color=INK, linewidth=1)
            if number == 0:
                at = max(speed["p50"], speed["p80"]) + 0.015 * most
                axes.text(at, place, f"{record['ratio']:.1f}x", va="center", fontsize=8)
    axes.set_xlim(0, most * 1.14)
    axes.set_ylim(len(names) - 0.4, -0.6)
    grid(axes, "x")
