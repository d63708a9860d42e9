"""The section of a README about bench-net, from its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from examples.bench.net.tables import METRICS, quality_metric, sent_nbytes
from trec_qcomm.lab.records import NetworkRecord

RATES = {
    "10mbit": "10 Mbit/s", "25mbit": "25 Mbit/s", "100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s",
    "10gbit": "10 Gbit/s", "none": "no limit",
}  # fmt: skip


def section(records: Sequence[NetworkRecord]) -> str:
    """Return a table for each plan, pipeline and number of hosts, and how they were measured."""
    places = sorted(set(map(_place_of, records)), reverse=True)
    places.sort(key=lambda place: place[1:])
    parts = [table([r for r in records if _place_of(r) == place]) for place in places]
    return "\n".join([*parts, made_with(records), ""])


def _place_of(record: NetworkRecord) -> tuple[str, int, int]:
    return plan_of(record), record.num_hosts, record.ranks_per_host


def plan_of(record: NetworkRecord) -> str:
    """Return the plan of a record, and its pipeline if it has one."""
    plan, pipeline = record.setup["plan"], record.setup.get("pipeline")
    return f"{plan}, {pipeline}" if pipeline else str(plan)


def table(records: Sequence[NetworkRecord], rates: Sequence[str] | None = None) -> str:
    """Return a line a configuration: bytes, and the step time at each rate.

    Args:
        records: records of one plan, pipeline and number of hosts and of their ranks.
        rates: rates that have a column; None: those that were measured.
    Raises: ValueError: records of several numbers of hosts or of their ranks; or a configuration's
        records have more than one config, setup or delay.
    """
    check_alike(records)
    hosts = dict.fromkeys(map(hosts_text, records))
    if len(hosts) > 1:
        raise ValueError(f"records of {' and of '.join(hosts)}; a table is of one")
    rates = rates or [rate for rate in RATES if any(r.rate == rate for r in records)]
    by_place = {(r.configuration, r.rate): r for r in records}
    names = dict.fromkeys(r.configuration for r in records)
    base = next(iter(names))
    place, metric = plan_of(records[0]), quality_metric(records)
    head = " | ".join(f"{RATES[rate]}: step" for rate in rates)
    lines = [
        f"| {hosts_text(records[0])}, {place} | sent a step | {head} | {METRICS[metric]} |",
        "|---|---|" + "---|" * len(rates) + "---|",
    ]
    for name in names:
        measured = {rate: by_place.get((name, rate)) for rate in rates}
        first = next(record for record in measured.values() if record is not None)
        sent = sent_nbytes(first)
        cells = [f"{sent / 1e6:.2f} MB, {sent_nbytes(by_place[base, first.rate]) / sent:.1f}x less"]
        for rate, record in measured.items():
            cells.append("" if record is None else _step(record, by_place[base, rate]))
        lines.append(f"| `{name}` | {' | '.join(cells)} | {first.metrics[metric]:.4f} |")
    return "\n".join(lines) + "\n"


def hosts_text(record: NetworkRecord) -> str:
    """Return the number of hosts, and that of the ranks of each where there are several."""
    of_ranks = f" of {record.ranks_per_host} ranks" if record.ranks_per_host > 1 else ""
    return f"{record.num_hosts} hosts{of_ranks}"


def _step(record: NetworkRecord, base: NetworkRecord) -> str:
    return f"{1e3 * record.step_s.p50:.0f} ms, {base.step_s.p50 / record.step_s.p50:.1f}x"


def check_alike(records: Sequence[NetworkRecord]) -> None:
    """Raise ValueError unless each line of a table is of one measurement."""
    first: dict[str, NetworkRecord] = {}
    for record in records:
        other = first.setdefault(record.configuration, record)
        ours, theirs = _identity(record), _identity(other)
        changed = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
        if changed:
            raise ValueError(
                f"{record.configuration} at {record.rate}: another {', '.join(changed)} than at "
                f"{other.rate}; a line of the table is of one"
            )


def _identity(record: NetworkRecord) -> dict[str, Any]:
    """Return all that a line has once: neither the rate nor the commit, which `made_with` tells."""
    fields = {name: getattr(record, name) for name in ("config", "num_steps", "delay")}
    return fields | dict(record.setup)


def made_with(records: Sequence[NetworkRecord]) -> str:
    """Return one sentence: model, commits, versions, machine."""
    first = records[0]
    environments = [r.environment for r in records if r.environment is not None]
    versions = ", ".join(f"{name} {number}" for name, number in environments[0].versions.items())
    commits = ", ".join(sorted({str(e.commit) for e in environments}))
    hardware = environments[0].hardware
    dim = first.setup.get("embedding_dim") or first.setup["dim"]
    return (
        f"{first.setup['batch_size']} samples a host, dim {dim}, "
        f"{first.num_steps} steps (median); commit {commits}; {versions}; "
        f"{hardware['num_cpus']} cores in all ({hardware['cpu']}), no GPU."
    )
