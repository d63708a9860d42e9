"""What coding the forward all-to-all alone gains in whole steps on emulated hosts.

Knows: records of make bench-net. Does not know: how they were measured.

The paper's share of the all-to-all is one of its own network; here it is between two bounds. What a
step waits is what it takes longer than without a limit. All of that, and what our collectives wait
without a limit, is the most that the all-to-all of rows can take; its share of the bytes is the
least, as dense gradients travel while the backward pass computes and rows do not. A slower link
makes share and gain larger. So the gain at a share of .6 is at least that of a link whose share is
surely below, and at most that of one surely above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from examples.papers.claims import FAILS, HOLDS, OPEN, Claim
from examples.papers.dual_level.encoders import ALL_TO_ALL_SHARE
from trec_qcomm.records import NetworkRecord

SPEED_UP = 1.38  # of a training, by the abstract
STOCK, EXACT, FORWARD = "stock", "fp32", "forward"
NO_LIMIT = "none"
RATES = {"500mbit": "500 Mbit/s", "900mbit": "900 Mbit/s"}
ROWS = ("embedding_forward", "embedding_backward")


@dataclass(frozen=True)
class Link:
    """Steps over one link.

    Args:
        least, most: bounds of the all-to-all's share of stock's step.
        exact_share: share that our collectives wait for rows, where they send the same bytes.
        speed_up: stock's step over that with the forward rows coded.
        exact_speed_up: stock's step over that of the same bytes sent by our collectives.
    """

    least: float
    most: float
    exact_share: float
    speed_up: float
    exact_speed_up: float


def speed_up(records: Sequence[NetworkRecord]) -> list[Claim]:
    """Decide whether a step becomes 1.38x faster where the all-to-all is .6 of it."""
    links = links_of(records)
    if not links:
        return []
    at_least = [link.speed_up for link in links.values() if link.most <= ALL_TO_ALL_SHARE]
    at_most = [link.speed_up for link in links.values() if link.least >= ALL_TO_ALL_SHARE]
    holds, fails = max(at_least, default=0.0) >= SPEED_UP, min(at_most, default=9.0) < SPEED_UP
    shown = "<br>".join(
        f"{RATES.get(rate, rate)}, share {link.least:.2f} to {link.most:.2f} "
        f"({link.exact_share:.2f}): {link.speed_up:.2f}x ({link.exact_speed_up:.2f}x)"
        for rate, link in links.items()
    )
    return [
        Claim(
            text="Training becomes 1.38x faster, with the forward all-to-all alone coded",
            source="abstract",
            setting="steps on 2 emulated hosts against plain TorchRec: dim 64, batch 2048, every "
            "row sent, SGD .1, `dual_level/forward.yaml`; medians of a training's first steps; on "
            "CPU with gloo, which takes about twice what a link's rate says",
            result=f"{shown}<br>in brackets float32 by our collectives",
            verdict=HOLDS if holds else FAILS if fails else OPEN,
            to_tell="GPUs and their network"
            if holds or fails
            else f"shares less wide than these around {ALL_TO_ALL_SHARE:g}; GPUs and their network",
        )
    ]


def links_of(records: Sequence[NetworkRecord]) -> Mapping[str, Link]:
    """Return what each rate with a limit shows; rates without all three trainings are left out."""
    steps = {(r.configuration, r.rate): r.step_s.p50 for r in records}
    exact = [r for r in records if r.configuration == EXACT and r.traffic]
    if (STOCK, NO_LIMIT) not in steps or NO_LIMIT not in {r.rate for r in exact}:
        return {}
    wire = {r.rate: r.breakdown_s["wire"] for r in exact}
    sent = {kind: part.wire_nbytes for kind, part in (exact[0].traffic or ())[0].items()}
    of_rows = sum(sent[kind] for kind in ROWS) / sum(sent.values())
    links = {}
    for rate in dict.fromkeys(r.rate for r in records if r.rate != NO_LIMIT):
        if not all((name, rate) in steps for name in (STOCK, EXACT, FORWARD)):
            continue
        whole = steps[STOCK, rate]
        waits = 1 - steps[STOCK, NO_LIMIT] / whole
        links[rate] = Link(
            least=waits * of_rows,
            most=waits + wire[NO_LIMIT] / whole,
            exact_share=wire[rate] / steps[EXACT, rate],
            speed_up=whole / steps[FORWARD, rate],
            exact_speed_up=whole / steps[EXACT, rate],
        )
    return links
