"""Throughput of codecs: bars of what they encode and decode in a second, ours and others'."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from trec_qcomm.lab.records import CodecRecord, Percentiles, Record, Scalar
from trec_qcomm.lab.report.figure import Cell, Figure, Finding, short, verdict
from trec_qcomm.lab.report.style import INK, OURS, THEIRS, grid

Name = tuple[str, float | None]  # name of a codec, and its bound
_SHADES = (1.0, 0.6, 0.4, 0.25)  # of the first number of threads, the second, ...


@dataclass(frozen=True)
class Case:
    """A case in which codecs are compared with one another.

    Args:
        values, dim: what was coded, and values of a row.
        setup: the records' `setup`, sorted by name.
        seed: seed of the training that made the values.
        hardware: the machine, in words.
    """

    values: str
    dim: int
    setup: tuple[tuple[str, Scalar], ...]
    seed: int
    hardware: str

    def __str__(self) -> str:
        return f"{self.values}, dim {self.dim}"

    @property
    def origin(self) -> str:
        """Text that says what is the same for most cases."""
        values = [str(value) for _, value in self.setup]
        return ", ".join(filter(None, (*values, f"seed {self.seed}", self.hardware)))


def build(records: Sequence[Record]) -> list[Figure]:
    """Return a figure for each case; of equal measurements the last counts, others are noted."""
    latest: dict[tuple[Case, int, Name], CodecRecord] = {}
    cases: dict[Case, list[CodecRecord]] = {}
    earlier: dict[Case, list[CodecRecord]] = {}
    for record in records:
        if isinstance(record, CodecRecord):
            case = _case(record)
            key = (case, record.threads, _name(record))
            if key in latest:
                cases[case].remove(latest[key])
                earlier.setdefault(case, []).append(latest[key])
            latest[key] = record
            cases.setdefault(case, []).append(record)
    names = list(map(str, cases))
    titles = {p: f"{p} ({p.origin})" if names.count(str(p)) > 1 else str(p) for p in cases}
    return [
        _figure(
            titles[case], case, cases[case], earlier.get(case, ()),
            "codecs" if number == 1 else f"codecs-{number}",
        )
        for number, case in enumerate(
            sorted(cases, key=lambda case: (str(case), case.origin)), start=1
        )
    ]  # fmt: skip


def _figure(
    title: str, case: Case, records: Sequence[CodecRecord], earlier: Sequence[CodecRecord], key: str
) -> Figure:
    records = sorted(records, key=lambda r: (int(r.threads), -float(r.encode_gb_s.p50)))
    threads = sorted({r.threads for r in records})
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
            f"{case.origin}.",
            *_again(earlier),
        ),
        findings=_findings(title, records),
    )  # fmt: skip


def _case(record: CodecRecord) -> Case:
    hardware = {} if record.environment is None else record.environment.hardware
    machine = ", ".join(f"{name} {value}" for name, value in sorted(hardware.items()))
    return Case(record.values, record.dim, record.setup_key, record.seed, machine)


def _again(earlier: Sequence[CodecRecord]) -> list[str]:
    if not earlier:
        return []
    known = (r.environment.commit for r in earlier if r.environment is not None)
    commits = ", ".join(dict.fromkeys(filter(None, known))) or "not known"
    return [f"{len(earlier)} measured again later are not shown (commit {commits})."]


def _name(record: CodecRecord) -> Name:
    """Return what tells bars of a figure apart."""
    return record.configuration, record.bound


def _labels(records: Sequence[CodecRecord]) -> dict[Name, str]:
    """Return the label of each codec: its name, and its bound where others bear the name."""
    every = list(dict.fromkeys(map(_name, records)))
    names = [name for name, _ in every]
    return {
        (name, bound): f"{name} at {bound:g}" if names.count(name) > 1 and bound else name
        for name, bound in every
    }


def _threads(number: int) -> str:
    return f"{number} thread{'s' * (number > 1)}"


def _row(record: CodecRecord, label: str) -> Sequence[Cell]:
    speeds = [
        speed for gb_s in (record.encode_gb_s, record.decode_gb_s)
        for speed in (gb_s.p20, gb_s.p50, gb_s.p80)
    ]  # fmt: skip
    return (
        record.threads, label, "yes" if record.is_ours else "no", record.ratio,
        *speeds, record.error_over_bound, record.break_even_gb_s,
    )  # fmt: skip


def front(records: Sequence[CodecRecord]) -> list[Name]:
    """Return our codecs that no other beats in both ratio and speed of encoding."""
    points = {_name(r): (float(r.ratio), float(r.encode_gb_s.p50)) for r in records}
    return [
        _name(r) for r in records
        if r.is_ours and not any(
            ratio >= points[_name(r)][0] and speed >= points[_name(r)][1]
            for name, (ratio, speed) in points.items() if name != _name(r)
        )
    ]  # fmt: skip


def _findings(where: str, records: Sequence[CodecRecord]) -> list[Finding]:
    """Return the front, and the largest error.

    The front has no mark: one of ours with a large ratio, of whatever error, is always on it.
    """
    findings = []
    threads = min(r.threads for r in records)
    group = [r for r in records if r.threads == threads]
    ours = [r for r in group if r.is_ours]
    if ours and len(group) > len(ours):
        labels = _labels(group)
        best = ", ".join(labels[name] for name in front(group)) or "none"
        text = (
            f"{where}, {_threads(threads)}: of {len(group)} codecs, none beats these of our "
            f"{len(ours)} in both ratio and speed of encoding: {best} (errors "
            "differ, see the table)."
        )
        findings.append(Finding(text))
    errors = {
        r.configuration: r.error_over_bound
        for r in sorted(records, key=lambda r: r.error_over_bound or 0)
        if r.is_ours and r.error_over_bound is not None
    }
    if errors:
        name, over = list(errors.items())[-1]
        text = f"{where}: the largest error of ours is {over:.4f} of the bound ({name})."
        findings.append(Finding(text, verdict(over <= 1)))
    return findings


def _alt(where: str, records: Sequence[CodecRecord]) -> str:
    speeds = [float(r.encode_gb_s.p50) for r in records if r.is_ours]
    ours = f" Median of ours to encode {median(speeds):.2f} GB/s." if speeds else ""
    what = f"{len(records)} measurements of {where}"
    return f"Bars of encode and decode speed, {what}.{ours}"


def _draw(canvas: Any, records: Sequence[CodecRecord], threads: Sequence[int]) -> None:
    names, said = list(dict.fromkeys(map(_name, records))), _labels(records)
    labels = {
        _name(r): ("* " if r.is_ours else "") + short(said[_name(r)], 34) for r in records
    }  # fmt: skip
    left, right = canvas.subplots(1, 2)
    for axes, call in ((left, "encode"), (right, "decode")):
        axes.set_title(call)
        _bars(axes, records, f"{call}_gb_s", names, threads)
        axes.set_xlabel("GB of float32 a second")
    left.set_yticks(range(len(names)), [labels[name] for name in names])
    right.set_yticks(range(len(names)), [""] * len(names))
    if len(threads) > 1:
        right.legend(loc="lower right")


def _bars(
    axes: Any,
    records: Sequence[CodecRecord],
    field: str,
    names: Sequence[tuple[str, Any]],
    threads: Sequence[int],
) -> None:
    most, height = max(getattr(r, field).p80 for r in records), 0.8 / len(threads)
    for number, count in enumerate(threads):
        shade = _SHADES[min(number, len(_SHADES) - 1)]
        axes.barh([0], [0], color=OURS, alpha=shade, label=f"ours, {_threads(count)}")
        for record in (r for r in records if r.threads == count):
            speed: Percentiles = getattr(record, field)
            color = OURS if record.is_ours else THEIRS
            height_at = names.index(_name(record)) - 0.4 + (number + 0.5) * height
            axes.barh(height_at, speed.p50, height=0.9 * height, color=color, alpha=shade)
            axes.plot([speed.p20, speed.p80], [height_at, height_at], color=INK, linewidth=1)
            if number == 0:
                at = max(speed.p50, speed.p80) + 0.015 * most
                axes.text(at, height_at, f"{record.ratio:.1f}x", va="center", fontsize=8)
    axes.set_xlim(0, most * 1.14)
    axes.set_ylim(len(names) - 0.4, -0.6)
    grid(axes, "x")
