"""Claims about two hops: what is sent inside a node, and what is sent, coded, between nodes.

Knows: the configs of two hops, records of networks and of trainings. Does not know: how they were
measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from examples.bench.net.section import hosts_text
from examples.papers.claims import FAILS, HOLDS, Claim
from examples.papers.decisions import Decision
from examples.papers.trainings import Judged, claim_of
from trec_qcomm import Config, GradientRule
from trec_qcomm.config import load_preset
from trec_qcomm.config.tables import HopCodecs
from trec_qcomm.lab.records import NetworkRecord
from trec_qcomm.lab.simulate.between_hosts import sent_between_hosts

WORDS = ("--plan", "two_level", "--ranks", "4", "--ranks-per-node", "2", "--min-count", "1")
FLAT, BY_NODE, EXACT_INSIDE = "fast", "by_node", "exact_inside"
WITHIN = 0.01  # of the share of a flat all-reduce
Place = tuple[int, int, str]  # hosts, ranks of each, plan


def configs() -> Mapping[str, Config]:
    """Return all rows and dense gradients in two hops: 16 bits inside a node, and float32 there."""
    by_node = load_preset("by_node")
    rule = by_node.dense
    assert isinstance(rule, GradientRule)
    exact_inside = replace(
        by_node,
        embedding=tuple(replace(tables, intra=HopCodecs()) for tables in by_node.embedding),
        dense=replace(rule, intra=None),
    )
    return {BY_NODE: by_node, EXACT_INSIDE: exact_inside}


def losses(judged: Judged) -> list[Claim]:
    """Decide whether two hops train as float32 does, float32 inside a node and 16 bits there."""
    return [
        claim
        for name, inside in ((EXACT_INSIDE, "exact"), (BY_NODE, "in 16 bits"))
        for claim in judged.no_loss(
            f"Rows and dense gradients that are {inside} inside a node and coded between nodes "
            "cost no accuracy",
            source="ours",
            setting="137k Criteo rows, dim 16, Adam and row-wise Adagrad, 2 nodes of 2 ranks x "
            "128, table-row-wise; between nodes rows within 1 %, their gradients in 4 bits, dense "
            "ones in 6",
            names=(name,),
        )
    ]


def bytes_between(records: Sequence[NetworkRecord]) -> list[Claim]:
    """Decide whether an all-reduce by node sends one rank's share of a flat one between nodes."""
    names = {_place(record): f"{hosts_text(record)}, {record.setup['plan']}" for record in records}
    shares = {place: both for place in names if (both := _shares(records, place))}
    if not any(ranks > 1 for _, ranks, _ in shares):
        return []
    is_kept = all(
        abs(ranks * share - 1) <= WITHIN
        for (_, ranks, _), both in shares.items() for share in both
    )  # fmt: skip
    return [
        claim_of(
            Decision(HOLDS if is_kept else FAILS),
            "An all-reduce by node, coded between nodes, sends 1/L of a flat one's bytes between "
            "nodes of L ranks",
            source="ours",
            setting="`by_node.yaml` against `fast.yaml`, both in 6 bits between nodes; emulated "
            "hosts, dim 64, 256 samples a rank, 10 steps at each rate: bench-net",
            result="share of a flat one's bytes by our count, by the kernel's: " + "; ".join(
                f"{names[place]} {ours:.3f}, {kernel:.3f}"
                for place, (ours, kernel) in shares.items()
            ),
        )
    ]  # fmt: skip


def _place(record: NetworkRecord) -> Place:
    return record.num_hosts, record.ranks_per_host, str(record.setup["plan"])


def _shares(records: Sequence[NetworkRecord], place: Place) -> tuple[float, ...]:
    """Return the share of a flat all-reduce's bytes by our count and by the kernel's, or nothing.

    The kernel counts all that leaves a host. Both configurations send rows and ids alike, so what
    it counts less of one of them is the all-reduce's.
    """
    flat, by_node = (
        [r for r in records if (r.configuration, _place(r)) == (name, place)]
        for name in (FLAT, BY_NODE)
    )
    if not flat or not by_node:
        return ()
    whole = fmean(map(_dense_nbytes, flat))
    saved = fmean(map(_kernel_nbytes, flat)) - fmean(map(_kernel_nbytes, by_node))
    return fmean(map(_dense_nbytes, by_node)) / whole, 1 - saved / whole


def _dense_nbytes(record: NetworkRecord) -> float:
    """Return the bytes of dense gradients that leave a host in a step."""
    return fmean(host["dense"] for host in sent_between_hosts(record))


def _kernel_nbytes(record: NetworkRecord) -> float:
    """Return all bytes that leave a host in a step, without headers, by the kernel's count."""
    return fmean(record.payload_nbytes)
