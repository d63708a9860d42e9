"""The tables and the last line of bench-net, from its records.

Of TorchRec without the plugin only the kernel's count is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from trec_qcomm.lab.records import TRAFFIC_GROUPS, NetworkRecord
from trec_qcomm.lab.simulate.between_hosts import sent_between_hosts

MOST_APART = 0.01  # of the kernel's count
METRICS = {"ne": "NE", "ndcg_10": "NDCG@10"}  # what a table shows of quality, the first there is


def sent_nbytes(record: NetworkRecord) -> float:
    """Return the bytes of a step by the kernel's count, the mean over hosts."""
    return sum(record.sent_nbytes) / len(record.sent_nbytes)


def plan_name(record: NetworkRecord) -> str:
    """Return the name of a record's plan; of a plan file that has no name its sharding."""
    plan = str(record.setup.get("plan", ""))
    return plan.split("sharding='", 1)[1].split("'", 1)[0] if plan.startswith("Plan(") else plan


def names_of(records: Sequence[NetworkRecord]) -> list[str]:
    """Return the configuration of each record, with the plan where there are several.

    Plan files of one sharding are numbered in the records' order.
    """
    plans = {str(record.setup.get("plan")): plan_name(record) for record in records}
    if len(plans) < 2:
        return [record.configuration for record in records]
    alike = {name: [plan for plan in plans if plans[plan] == name] for name in plans.values()}
    names = []
    for record in records:
        name, plan = plan_name(record), str(record.setup.get("plan"))
        number = f" {alike[name].index(plan) + 1}" if len(alike[name]) > 1 else ""
        names.append(f"{record.configuration}, {name}{number}")
    return names


def quality_metric(records: Sequence[NetworkRecord]) -> str:
    """Return the name of the metric that all records have."""
    return next(name for name in METRICS if all(name in r.metrics for r in records))


def counted_nbytes(record: NetworkRecord) -> dict[str, float]:
    """Return the bytes that a rank sends in a step by trec_qcomm's count, by kind; the mean."""
    ranks = record.traffic or ()
    return {
        group: sum(rank[kind].wire_nbytes for rank in ranks for kind in kinds if kind in rank)
        / max(len(ranks), 1)
        for group, kinds in TRAFFIC_GROUPS.items()
    }


def apart(record: NetworkRecord) -> float:
    """Return the difference of the two counts, as a share of the kernel's without headers.

    The kernel counts what leaves a host, so of several ranks on one that is what counts of ours.
    """
    ours = fmean(sum(host.values()) for host in sent_between_hosts(record))
    return abs(1 - ours / fmean(record.payload_nbytes))


def format_table(records: Sequence[NetworkRecord]) -> str:
    """Return markdown, a line a configuration, of one network.

    What is sent is that of a host by the kernel's count; its kinds are those of a rank.
    """
    if not records:
        return "nothing measured"
    base = next((r for r in records if r.configuration == "stock"), records[0])
    delay = f", {base.delay} one way" if base.delay else ""
    metric = quality_metric(records)
    lines = [
        f"{base.num_hosts} hosts, {base.rate}{delay}",
        "",
        f"| | step [ms], p50 (p20 to p80) | times {base.configuration}'s speed | sent [KB] "
        f"| times less | {', '.join(TRAFFIC_GROUPS)} [KB] | {METRICS[metric]} | counts apart |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, r in zip(names_of(records), records, strict=True):
        p20, p50, p80 = (1e3 * seconds for seconds in (r.step_s.p20, r.step_s.p50, r.step_s.p80))
        kinds, difference = "", ""
        if r.traffic:
            kinds = ", ".join(f"{n / 1e3:.0f}" for n in counted_nbytes(r).values())
            difference = f"{apart(r):.1%}"
        lines.append(
            f"| {name} | {p50:.0f} ({p20:.0f} to {p80:.0f}) "
            f"| {base.step_s.p50 / r.step_s.p50:.2f} | {sent_nbytes(r) / 1e3:.0f} "
            f"| {sent_nbytes(base) / sent_nbytes(r):.1f} | {kinds} | {r.metrics[metric]:.4f} "
            f"| {difference} |"
        )
    return "\n".join(lines)


def format_breakdown(records: Sequence[NetworkRecord]) -> str:
    """Return markdown: where the time of a step goes, ms, the mean over hosts.

    Parts may overlap. Waiting for other hosts and what else TorchRec does are in none.
    """
    parts = ("lookup", "dense", "optimizer", "stock codec", "encode", "wire", "decode")
    parts += ("all-to-all", "reader")
    lines = ["| ms | " + " | ".join(parts) + " |", "|---|" + "---|" * len(parts)]
    for name, r in zip(names_of(records), records, strict=True):
        cells = (f"{1e3 * r.breakdown_s[p]:.1f}" if p in r.breakdown_s else "" for p in parts)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def verdict(networks: Sequence[Sequence[NetworkRecord]]) -> str:
    """Return one line: what the config with the fewest bytes gains on the slowest network."""
    slow = max((n for n in networks if n), key=lambda n: max(r.step_s.p50 for r in n))
    best = min(slow, key=sent_nbytes)
    gains = [
        f"{sent_nbytes(r) / sent_nbytes(best):.1f}x fewer bytes and "
        f"{r.step_s.p50 / best.step_s.p50:.1f}x the speed of {r.configuration}"
        for r in slow
        if r.configuration.startswith("stock")
    ]
    at = f"{best.num_hosts} hosts at {best.rate}"
    return f"{best.configuration} on {at}: {', '.join(gains) or 'nothing stock beside it'}"
