"""The tables of bench-codec, from its records: what run.py prints, and sections of the READMEs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]
COLUMNS = ("ratio", "encode", "decode", "break-even", "error")


def section(records: Sequence[Record], dims: Sequence[int]) -> str:
    """A table of each dim, and what they were measured with."""
    tables = [table([r for r in records if r["dim"] == dim]) for dim in dims]
    return "\n\n".join([*tables, made_with([r for r in records if r["dim"] in dims])]) + "\n"


def table(records: Sequence[Record]) -> str:
    """Markdown, a line a codec. All of one dim and machine; rows and gradients side by side."""
    kinds = list(dict.fromkeys(r["kind"] for r in records))
    threads = sorted({r["threads"] for r in records})
    by_place = {(r["name"], r["kind"], r["threads"]): r for r in records}
    heads = [f"{kind}: {COLUMNS[0]}" if i == 0 else c for kind in kinds
             for i, c in enumerate(COLUMNS)]  # fmt: skip
    lines = [f"| dim {records[0]['dim']} | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for name in dict.fromkeys(r["name"] for r in sorted(records, key=lambda r: not r["ours"])):
        cells = []
        for kind in kinds:
            own = [by_place[name, kind, t] for t in threads if (name, kind, t) in by_place]
            cells += _cells(own) if own else [""] * len(COLUMNS)
        ours = next(r["ours"] for r in records if r["name"] == name)
        lines.append(f"| {f'`{name}`' if ours else name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(records: Sequence[Record]) -> list[str]:
    """Of one codec and kind, by number of threads: the ratio, and an error, is the last one's."""
    last = records[-1]
    ratio = f"{last['ratio']:.2f}" if last["ratio"] < 100 else f"{last['ratio']:.0f}"
    rates = (", ".join(_rate(r[f"{call}_gb_s"]["p50"]) for r in records)
             for call in ("encode", "decode"))  # fmt: skip
    link = ", ".join(_rate(r["break_even_gb_s"]) for r in records)
    return [ratio, *rates, link, error(last)]


def _rate(gb_s: float) -> str:
    return "none" if gb_s <= 0 else f"{gb_s:.2f}" if gb_s >= 0.1 else f"{gb_s:.1g}"


def error(record: Record) -> str:
    """Of the bound, where there is one; else absolute."""
    if record.get("error_over_bound") is not None:
        return f"{record['error_over_bound']:.3f} of {100 * record['bound']:g} %"
    return f"{record['max_error']:.1e}" if record["max_error"] else "0"


def made_with(records: Sequence[Record]) -> str:
    """What the numbers are, data, commits, versions, machine."""
    first = records[0]
    versions = {name: number for r in records for name, number in r["versions"].items()}
    named = ", ".join(f"{name} {number}" for name, number in versions.items())
    threads = ", ".join(str(t) for t in sorted({r["threads"] for r in records}))
    sizes = ", ".join(
        f"{kind} {nbytes / 1e6:.2f} MB"
        for kind, nbytes in dict.fromkeys((r["kind"], r["raw_nbytes"]) for r in records)
    )
    return (
        f"GB/s of float32 (p50), number of threads: {threads}; break-even: of a link, `none` where "
        "nothing is saved; error: of the bound, a fraction of each table's range, or absolute. "
        "Times are of a machine under load, and codecs take turns for one number of threads after "
        "the other: compare down a column. "
        f"{', '.join(dict.fromkeys(r['data'] for r in records))} ({sizes}), "
        f"seed {first['seed']}; commit {', '.join(sorted({r['commit'] for r in records}))}; "
        f"{named}; {first['hardware']['num_cpus']} cores in all ({first['hardware']['cpu']})."
    )
