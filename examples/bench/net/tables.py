"""The tables and the last line of bench-net, from its records.

Of TorchRec without the plugin only the kernel's count is known; the kinds are those of the codec
configs' ids and dense gradients, which are the same, and the rest is rows and their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

KINDS = {
    "forward": ("embedding_forward", "intra_embedding_forward"),
    "backward": ("embedding_backward", "intra_embedding_backward"),
    "dense": ("dense", "data_parallel"),
    "ids": ("input",),
}
MOST_APART = 0.03

Record = dict[str, Any]


def sent_nbytes(record: Record) -> float:
    """A step, the mean over hosts, by the kernel's count."""
    return sum(record["sent_nbytes"]) / len(record["sent_nbytes"])


def counted_nbytes(record: Record) -> dict[str, float]:
    """A step by kind, the mean over hosts, by trec_qcomm's count."""
    return {
        kind: sum(sum(record["counted"][p]["wire_nbytes"]) for p in parts) / record["hosts"]
        for kind, parts in KINDS.items()
    }


def apart(record: Record) -> float:
    """How far the two counts are from one another, of the kernel's."""
    return abs(1 - sum(counted_nbytes(record).values()) / sent_nbytes(record))


def format_table(records: Sequence[Record]) -> str:
    """Markdown, a line a config, of one network."""
    if not records:
        return "nothing measured"
    base = next((r for r in records if r["way"] == "stock"), records[0])
    delay = f", {base['delay']} one way" if base["delay"] else ""
    lines = [
        f"{base['hosts']} hosts, {base['rate']}{delay}",
        "",
        f"| | step [ms], p50 (p20 to p80) | times {base['way']}'s speed | sent [KB] "
        f"| times less | forward, backward, dense, ids [KB] | NE | counts apart |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in records:
        p20, p50, p80 = (1e3 * r["step_s"][p] for p in ("p20", "p50", "p80"))
        kinds, difference = "", ""
        if r["counted"]:
            kinds = ", ".join(f"{n / 1e3:.0f}" for n in counted_nbytes(r).values())
            difference = f"{apart(r):.1%}"
        lines.append(
            f"| {r['way']} | {p50:.0f} ({p20:.0f} to {p80:.0f}) "
            f"| {base['step_s']['p50'] / r['step_s']['p50']:.2f} | {sent_nbytes(r) / 1e3:.0f} "
            f"| {sent_nbytes(base) / sent_nbytes(r):.1f} | {kinds} | {r['metrics']['ne']:.4f} "
            f"| {difference} |"
        )
    return "\n".join(lines)


def format_breakdown(records: Sequence[Record]) -> str:
    """Markdown: where the time of a step goes, ms, the mean over hosts. Parts may overlap; waiting
    for other hosts, ids and what else TorchRec does are in none."""
    parts = ("lookup", "dense", "optimizer", "stock codec", "encode", "wire", "decode")
    lines = ["| ms | " + " | ".join(parts) + " |", "|---|" + "---|" * len(parts)]
    for r in records:
        own = r["breakdown_s"]
        cells = (f"{1e3 * own[part]:.1f}" if part in own else "" for part in parts)
        lines.append(f"| {r['way']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def verdict(networks: Sequence[Sequence[Record]]) -> str:
    """One line: what the config with the fewest bytes gains on the slowest network."""
    slow = max((n for n in networks if n), key=lambda n: max(r["step_s"]["p50"] for r in n))
    best = min(slow, key=sent_nbytes)
    gains = [
        f"{sent_nbytes(r) / sent_nbytes(best):.1f}x fewer bytes and "
        f"{r['step_s']['p50'] / best['step_s']['p50']:.1f}x the speed of {r['way']}"
        for r in slow
        if r["way"].startswith("stock")
    ]
    at = f"{best['hosts']} hosts at {best['rate']}"
    return f"{best['way']} on {at}: {', '.join(gains) or 'nothing stock beside it'}"
