"""The section of README.md about bench-net, from its records."""

from __future__ import annotations

from typing import Any

from tables import sent_nbytes

RATES = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s", "none": "no limit"}

Record = dict[str, Any]


def section(records: list[Record]) -> str:
    """A table for each number of hosts, and what they were measured with."""
    parts = [table([r for r in records if r["hosts"] == h]) for h in dict.fromkeys(hosts(records))]
    return "\n".join([*parts, made_with(records), ""])


def hosts(records: list[Record]) -> list[int]:
    return sorted(r["hosts"] for r in records)


def table(records: list[Record]) -> str:
    """A line a config: bytes, and the step time at each rate. All of one number of hosts.

    Raises: ValueError: a way's records are not of one config, commit, model and delay.
    """
    check_alike(records)
    rates = [rate for rate in RATES if any(r["rate"] == rate for r in records)]
    by_place = {(r["way"], r["rate"]): r for r in records}
    ways = dict.fromkeys(r["way"] for r in records)
    base = next(iter(ways))
    head = " | ".join(f"{RATES[rate]}: step" for rate in rates)
    lines = [
        f"| {records[0]['hosts']} hosts | sent a step | {head} | NE |",
        "|---|---|" + "---|" * len(rates) + "---|",
    ]
    for way in ways:
        own = [by_place[way, rate] for rate in rates]
        sent = sent_nbytes(own[0])
        cells = [f"{sent / 1e6:.2f} MB, {sent_nbytes(by_place[base, rates[0]]) / sent:.1f}x less"]
        for rate, record in zip(rates, own, strict=True):
            p50 = record["step_s"]["p50"]
            cells.append(f"{1e3 * p50:.0f} ms, {by_place[base, rate]['step_s']['p50'] / p50:.1f}x")
        lines.append(f"| `{way}` | {' | '.join(cells)} | {own[0]['metrics']['ne']:.4f} |")
    return "\n".join(lines) + "\n"


def check_alike(records: list[Record]) -> None:
    """Raises ValueError as table."""
    first: dict[str, Record] = {}
    for record in records:
        one = _what(first.setdefault(record["way"], record))
        changed = [name for name, value in _what(record).items() if value != one[name]]
        if changed:
            raise ValueError(
                f"{record['way']} at {record['rate']}: another {', '.join(changed)} than at "
                f"{first[record['way']]['rate']}; a line of the table is of one"
            )


def _what(record: Record) -> dict[str, Any]:
    """All that a line has once, but the rate."""
    names = ("config", "commit", "model", "num_steps", "delay")
    options = {name: value for name, value in record["options"].items() if value is not None}
    return {name: record.get(name) for name in names} | {"options": options}


def made_with(records: list[Record]) -> str:
    """One sentence: model, commits, versions, machine."""
    first, options = records[0], records[0]["options"]
    versions = ", ".join(f"{name} {number}" for name, number in first["versions"].items())
    commits = ", ".join(sorted({r["commit"] for r in records}))
    return (
        f"{options['batch_size']} samples a host, dim {options['embedding_dim']}, "
        f"{first['num_steps']} steps (median); commit {commits}; {versions}; "
        f"{first['hardware']['num_cpus']} cores in all ({first['hardware']['cpu']}), no GPU."
    )
