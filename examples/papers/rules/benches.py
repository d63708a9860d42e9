"""What the benches of this repository have recorded: networks and codecs.

Each function takes the records of a bench. Knows: records. Does not know: how they were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from examples.papers.decisions import FAILS, HOLDS, OPEN, Outcome
from trec_qcomm.lab import records
from trec_qcomm.lab.records import NetworkRecord
from trec_qcomm.lab.simulate.between_hosts import sent_between_hosts

RATES = {
    "25mbit": "25 Mbit/s", "100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s",
    "none": "no limit",
}  # fmt: skip
ALL_TO_ALL = "all-to-all"  # of a record's breakdown_s
WITHIN = 0.01  # of the share of a flat all-reduce
Networks = Sequence[NetworkRecord]
Place = tuple[int, int, str]  # hosts, ranks of each, plan


def read(path: Path) -> Sequence[Any]:
    """Return the records of a file."""
    return records.read(path)


def shorter_steps(made: Networks, config: str) -> Outcome:
    """Show by how much steps are shorter than plain TorchRec's on two hosts, by rate."""
    chosen = [r for r in made if r.num_hosts == 2 and r.setup["plan"] == "table_wise"]
    times = {(r.configuration, r.rate): r.step_s.p50 for r in chosen}
    shown = ", ".join(
        f"{100 * (1 - times[config, rate] / times['stock', rate]):.0f} % at {text}"
        for rate, text in RATES.items()
        if (config, rate) in times and ("stock", rate) in times
    )
    return Outcome(OPEN, f"shorter by {shown}")


def without_prediction(made: Sequence[Any]) -> Outcome:
    """Decide whether SZ3's ratio is larger without its prediction."""
    cases: dict[str, dict[str, float]] = {}
    for record in made:
        if record.configuration.startswith("SZ3") and record.threads == 1:
            case = cases.setdefault(f"{record.values} of dim {record.dim}", {})
            case[record.configuration] = record.ratio
    pairs = {name: (v["SZ3"], v["SZ3, no prediction"]) for name, v in cases.items()}
    shown = "<br>".join(f"{name}: {a:.1f}x, {b:.1f}x" for name, (a, b) in pairs.items())
    is_so = all(b > a for a, b in pairs.values())
    return Outcome(HOLDS if is_so else FAILS, f"with prediction, without:<br>{shown}")


@dataclass(frozen=True)
class Link:
    """Steps over one link, a number for each run.

    Args:
        rate: rate of the link as tc writes it.
        shares: all-to-all's share of the step of plain TorchRec.
        speed_ups: the latter step over that with the forward rows coded.
        exact_speed_ups: the latter step over that of float32 sent by our collectives.
    """

    rate: str
    shares: Sequence[float]
    speed_ups: Sequence[float]
    exact_speed_ups: Sequence[float]


def faster_step(made: Networks, optimizer: str, share: float, theirs: float) -> Outcome:
    """Decide whether a step of which the all-to-all is a share becomes as much faster as theirs.

    A slower link makes share and gain larger. So the gain at a share is at least that of a link
    whose share is below in every run, and at most that of one whose share is above in every run; of
    several runs the one that says least counts.
    """
    links = links_of([r for r in made if r.setup["embedding_optimizer"] == optimizer])
    at_least = [min(link.speed_ups) for link in links if max(link.shares) <= share]
    at_most = [max(link.speed_ups) for link in links if min(link.shares) >= share]
    holds, fails = max(at_least, default=0.0) >= theirs, min(at_most, default=9.0) < theirs
    shown = "<br>".join(
        f"{link.rate.removesuffix('mbit')} Mbit/s, share {_range(link.shares)}: "
        f"{_range(link.speed_ups)}x ({_range(link.exact_speed_ups)}x)"
        for link in links
    )
    return Outcome(
        HOLDS if holds else FAILS if fails else OPEN,
        f"{shown}<br>in brackets float32 by our collectives",
        fields={"runs": f"{len(links[0].shares)} runs"} if links else {"runs": "no runs"},
    )


def links_of(made: Networks) -> list[Link]:
    """Return what each rate shows, in the records' order; the runs of a rate are in that order too.

    Raises: ValueError: a rate whose three trainings do not have as many runs.
    """
    links = []
    for rate in dict.fromkeys(record.rate for record in made):
        stock, exact, forward = (
            [r for r in made if (r.rate, r.configuration) == (rate, name)]
            for name in ("stock", "fp32", "forward")
        )
        if not len(stock) == len(exact) == len(forward):
            raise ValueError(
                f"{rate}: {len(stock)} runs of stock, {len(exact)} of fp32, {len(forward)} of "
                "forward; expected as many of each"
            )
        links.append(
            Link(
                rate,
                [r.breakdown_s[ALL_TO_ALL] / r.step_s.p50 for r in stock],
                *([a.step_s.p50 / b.step_s.p50 for a, b in zip(stock, ours, strict=True)]
                  for ours in (forward, exact)),
            )
        )  # fmt: skip
    return links


def _range(numbers: Sequence[float]) -> str:
    low, high = f"{min(numbers):.2f}", f"{max(numbers):.2f}"
    return low if low == high else f"{low} to {high}"


def bytes_between_nodes(made: Networks, flat: str, by_node: str) -> Outcome | None:
    """Decide whether an all-reduce by node sends 1/L of a flat one's bytes between nodes.

    Args: flat, by_node: names of the two configurations.  L is the number of ranks of a node.
    """
    places = {_place(r): f"{r.num_hosts} hosts" + f" of {r.ranks_per_host} ranks"
              * (r.ranks_per_host > 1) + f", {r.setup['plan']}" for r in made}  # fmt: skip
    shares = {place: both for place in places if (both := _shares(made, place, flat, by_node))}
    if not any(ranks > 1 for _, ranks, _ in shares):
        return None
    is_kept = all(abs(ranks * share - 1) <= WITHIN
                  for (_, ranks, _), both in shares.items() for share in both)  # fmt: skip
    shown = "; ".join(f"{places[place]} {a:.3f}, {b:.3f}" for place, (a, b) in shares.items())
    start = "share of a flat one's bytes by our count, by the kernel's: "
    return Outcome(HOLDS if is_kept else FAILS, start + shown)


def _place(record: NetworkRecord) -> Place:
    return record.num_hosts, record.ranks_per_host, str(record.setup["plan"])


def _shares(made: Networks, place: Place, flat: str, by_node: str) -> tuple[float, ...]:
    """Return the share of a flat all-reduce's bytes by our count and by the kernel's, or nothing.

    The kernel counts all that leaves a host. Both configurations send rows and ids alike, so what
    it counts less of one of them is the all-reduce's.
    """
    alone, together = (
        [r for r in made if (r.configuration, _place(r)) == (name, place)]
        for name in (flat, by_node)
    )
    if not alone or not together:
        return ()
    whole, part = (
        fmean(host["dense"] for r in group for host in sent_between_hosts(r))
        for group in (alone, together)
    )
    before, after = (fmean(x for r in group for x in r.payload_nbytes)
                     for group in (alone, together))  # fmt: skip
    return part / whole, 1 - (before - after) / whole


RULES: tuple[Callable[..., Outcome | None], ...] = (
    shorter_steps, without_prediction, faster_step, bytes_between_nodes,
)  # fmt: skip
