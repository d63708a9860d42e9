"""The tables of bench-codec, from its records: what it prints, and a section of a README."""

from __future__ import annotations

from collections.abc import Sequence

from trec_qcomm.lab.records import CodecRecord, Percentiles

COLUMNS = ("ratio", "encode", "decode", "break-even", "error")


def section(records: Sequence[CodecRecord], dims: Sequence[int]) -> str:
    """Return a table of each dim, and what they were measured with."""
    tables = [table([r for r in records if r.dim == dim]) for dim in dims]
    return "\n\n".join([*tables, made_with([r for r in records if r.dim in dims])]) + "\n"


def table(records: Sequence[CodecRecord]) -> str:
    """Return markdown, a line a codec, rows and gradients side by side.

    Args: records: records of one dim and machine.
    """
    kinds = list(dict.fromkeys(r.values for r in records))
    threads = sorted({r.threads for r in records})
    by_place = {(r.configuration, r.values, r.threads): r for r in records}
    heads = [f"{kind}: {COLUMNS[0]}" if i == 0 else c for kind in kinds
             for i, c in enumerate(COLUMNS)]  # fmt: skip
    lines = [f"| dim {records[0].dim} | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    ordered = sorted(records, key=lambda r: not r.is_ours)
    for name, is_ours in dict.fromkeys((r.configuration, r.is_ours) for r in ordered):
        cells = []
        for kind in kinds:
            measured = [by_place[name, kind, t] for t in threads if (name, kind, t) in by_place]
            cells += _cells(measured) if measured else [""] * len(COLUMNS)
        lines.append(f"| {f'`{name}`' if is_ours else name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def break_even_gb_s(ratio: float, encode: float, decode: float) -> float:
    """Return the GB/s of a link below which coding pays: it saves there what the coder takes.

    It is below 0 where the bytes grow.

    Args:
        ratio: raw over coded bytes.
        encode, decode: GB/s of raw bytes.
    """
    return (1 - 1 / ratio) / (1 / encode + 1 / decode)


def _cells(records: Sequence[CodecRecord]) -> list[str]:
    """Return the cells of one codec and kind. Ratio and error are those of the last record.

    Args: records: records by number of threads.
    """
    last = records[-1]
    ratio = f"{last.ratio:.2f}" if last.ratio < 100 else f"{last.ratio:.0f}"
    encode, decode = ([r.encode_gb_s for r in records], [r.decode_gb_s for r in records])
    link = ", ".join(_rate(r.break_even_gb_s or 0.0) for r in records)
    return [ratio, _medians(encode), _medians(decode), link, _error(last)]


def _medians(rates: Sequence[Percentiles]) -> str:
    return ", ".join(_rate(rate.p50) for rate in rates)


def _rate(gb_s: float) -> str:
    return "none" if gb_s <= 0 else f"{gb_s:.2f}" if gb_s >= 0.1 else f"{gb_s:.1g}"


def _error(record: CodecRecord) -> str:
    """Return the error over the bound, where there is one; else the absolute error."""
    if record.error_over_bound is not None and record.bound is not None:
        return f"{record.error_over_bound:.3f} of {100 * record.bound:g} %"
    return f"{record.max_error:.1e}" if record.max_error else "0"


def made_with(records: Sequence[CodecRecord]) -> str:
    """Return what the numbers mean; data, commits, versions, machine."""
    environments = [r.environment for r in records if r.environment is not None]
    versions = {name: number for e in environments for name, number in e.versions.items()}
    named = ", ".join(f"{name} {number}" for name, number in versions.items())
    threads = ", ".join(str(t) for t in sorted({r.threads for r in records}))
    sizes = ", ".join(
        f"{kind} {(nbytes or 0) / 1e6:.2f} MB"
        for kind, nbytes in dict.fromkeys((r.values, r.raw_nbytes) for r in records)
    )
    hardware = environments[0].hardware
    return (
        f"GB/s of float32 (p50), number of threads: {threads}; break-even: of a link, `none` where "
        "nothing is saved; error: of the bound, a fraction of each table's range, or absolute. "
        "Times are of a machine under load, and codecs take turns for one number of threads after "
        "the other: compare down a column. "
        f"{', '.join(dict.fromkeys(str(r.setup.get('data')) for r in records))} ({sizes}), "
        f"seed {records[0].seed}; commit {', '.join(sorted({str(e.commit) for e in environments}))}"
        f"; {named}; {hardware['num_cpus']} cores in all ({hardware['cpu']})."
    )
