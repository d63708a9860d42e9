"""What coding the forward all-to-all alone gains in whole steps on emulated hosts.

Knows: records of make bench-net. Does not know: how they were measured.

The paper's share of the all-to-all is one of its own network; here it is the time in which an
all-to-all was under way in a step of plain TorchRec. A slower link makes share and gain larger. So
the gain at a share of .6 is at least that of a link whose share is below in every run, and at most
that of one whose share is above in every run; of several runs the one that says least counts.
A run:

  python -m examples.bench.net --data train.txt --hosts 2 --rate 500mbit,750mbit --out run.jsonl
      --configs stock configs/fp32.yaml examples/papers/dual_level/forward.yaml
      --embedding-optimizer sgd --lr .1 --dense-optimizer sgd --dense-lr .1
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from examples.papers.claims import FAILS, HOLDS, OPEN, Claim
from examples.papers.dual_level.encoders import ALL_TO_ALL_SHARE
from trec_qcomm.lab.records import NetworkRecord

SPEED_UP = 1.38  # of a training, by the abstract
STOCK, EXACT, FORWARD = "stock", "fp32", "forward"
ALL_TO_ALL = "all-to-all"  # of a record's breakdown_s


@dataclass(frozen=True)
class Link:
    """Steps over one link, a number for each run.

    Args:
        rate: rate of the link as tc writes it.
        shares: all-to-all's share of stock's step.
        speed_ups: stock's step over that with the forward rows coded.
        exact_speed_ups: stock's step over that of the same bytes sent by our collectives.
    """

    rate: str
    shares: Sequence[float]
    speed_ups: Sequence[float]
    exact_speed_ups: Sequence[float]


def speed_up(records: Sequence[NetworkRecord]) -> list[Claim]:
    """Decide whether a step whose all-to-all is .6 of it becomes 1.38x faster; by optimizer."""
    by_optimizers = defaultdict(list)
    for record in records:
        by_optimizers[_optimizers(record)].append(record)
    return [_claim(optimizers, links_of(alike)) for optimizers, alike in by_optimizers.items()]


def _optimizers(record: NetworkRecord) -> str:
    setup = record.setup
    return (
        f"tables {setup['embedding_optimizer']} {setup['lr']:g}, "
        f"dense layers {setup['dense_optimizer']} {setup['dense_lr']:g}"
    )


def _claim(optimizers: str, links: Sequence[Link]) -> Claim:
    at_least = [min(k.speed_ups) for k in links if max(k.shares) <= ALL_TO_ALL_SHARE]
    at_most = [max(k.speed_ups) for k in links if min(k.shares) >= ALL_TO_ALL_SHARE]
    holds, fails = max(at_least, default=0.0) >= SPEED_UP, min(at_most, default=9.0) < SPEED_UP
    shown = "<br>".join(
        f"{link.rate.removesuffix('mbit')} Mbit/s, share {_range(link.shares)}: "
        f"{_range(link.speed_ups)}x ({_range(link.exact_speed_ups)}x)"
        for link in links
    )
    return Claim(
        text="Training becomes 1.38x faster, with the forward all-to-all alone coded",
        source="abstract",
        setting="steps on 2 emulated hosts against plain TorchRec: dim 64, batch 2048, every row "
        f"sent, {optimizers}, `dual_level/forward.yaml`; medians of a training's first steps, "
        f"{len(links[0].shares)} runs; on CPU with gloo, which takes about twice what a link's "
        "rate says",
        result=f"{shown}<br>in brackets float32 by our collectives",
        verdict=HOLDS if holds else FAILS if fails else OPEN,
        to_tell="GPUs and their network",
    )


def _range(numbers: Sequence[float]) -> str:
    low, high = f"{min(numbers):.2f}", f"{max(numbers):.2f}"
    return low if low == high else f"{low} to {high}"


def links_of(records: Sequence[NetworkRecord]) -> list[Link]:
    """Return what each rate shows, in the records' order; the runs of a rate are in that order too.

    Raises: ValueError: a rate whose three trainings do not have as many runs, or a run of stock
        whose all-to-all was not measured.
    """
    links = []
    for rate in dict.fromkeys(record.rate for record in records):
        runs = {
            name: [r for r in records if (r.rate, r.configuration) == (rate, name)]
            for name in (STOCK, EXACT, FORWARD)
        }
        if len({len(of_one) for of_one in runs.values()}) > 1:
            counts = ", ".join(f"{len(of_one)} runs of {name}" for name, of_one in runs.items())
            raise ValueError(f"{rate}: {counts}")
        steps = {name: [r.step_s.p50 for r in of_one] for name, of_one in runs.items()}
        if not all(ALL_TO_ALL in record.breakdown_s for record in runs[STOCK]):
            raise ValueError(
                f"{rate}: a run of stock has no time of the all-to-all (breakdown_s: "
                f"{ALL_TO_ALL}), as those of older versions; run it again"
            )
        all_to_all = [record.breakdown_s[ALL_TO_ALL] for record in runs[STOCK]]
        links.append(
            Link(
                rate=rate,
                shares=_ratios(all_to_all, steps[STOCK]),
                speed_ups=_ratios(steps[STOCK], steps[FORWARD]),
                exact_speed_ups=_ratios(steps[STOCK], steps[EXACT]),
            )
        )
    return links


def _ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(over, under, strict=True)]
