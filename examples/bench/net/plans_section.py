"""The section of a README about plans that were trained in turn, from bench-net's records."""

from __future__ import annotations

from collections.abc import Sequence

from examples.bench.net.section import RATES, made_with
from examples.bench.net.tables import plan_name, sent_nbytes
from trec_qcomm.lab.records import NetworkRecord

BASE = "table_wise"


def section(records: Sequence[NetworkRecord]) -> str:
    """Return a table with a line for each configuration and plan, and how it was measured.

    Times are those of the slowest host, in brackets over those of table_wise at that rate.
    Raises: ValueError: records of several numbers of hosts.
    """
    num_hosts = sorted({record.num_hosts for record in records})
    if len(num_hosts) > 1:
        raise ValueError(f"records of {num_hosts} hosts: a table of plans has one number of hosts")
    rates = [rate for rate in RATES if any(r.rate == rate for r in records)]
    by_place = {(r.configuration, label(r), r.rate): r for r in records}
    head = " | ".join(f"{RATES[rate]}: step" for rate in rates)
    lines = [
        f"| {num_hosts[0]} hosts | plan | sent a step | {head} |",
        "|---" * (3 + len(rates)) + "|",
    ]
    for name, plan in dict.fromkeys((r.configuration, label(r)) for r in records):
        measured = [by_place[name, plan, rate] for rate in rates]
        bases = [by_place[name, BASE, rate].step_s.p50 for rate in rates]
        cells = [
            f"{1e3 * r.step_s.p50:.0f} ms ({r.step_s.p50 / base:.2f})"
            for r, base in zip(measured, bases, strict=True)
        ]
        sent = sent_nbytes(measured[0])
        lines.append(f"| `{name}` | {plan} | {sent / 1e6:.2f} MB | {' | '.join(cells)} |")
    return "\n".join([*lines, "", made_with(records), ""])


def label(record: NetworkRecord) -> str:
    """Return the name of a record's plan, and that it is table_wise once more."""
    plan = plan_name(record)
    return f"{plan}, again" if plan == BASE and record.setup["plan"] != BASE else plan
