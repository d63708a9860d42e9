"""What trainings decide about quantized collectives.

Knows: records of trainings, the paper's claims. Does not know: how they were run.
Source of the claims: the abstract of Yang et al. 2020: all three collectives go to 4 bits without
a loss of accuracy, the all-reduce by ring or recursive doubling, with or without the error carried
forward. What is said of 8 and 2 bits, and of what the carried error is good for, is our reading.
"""

from __future__ import annotations

from collections.abc import Sequence

from examples.papers.claims import Claim, Source
from examples.papers.collectives.configs import ALGORITHMS, DIRECTIONS
from examples.papers.decisions import Decision, all_of, lower
from examples.papers.trainings import Judged, as_text, claim_of, seeds_of

ADAM = "137k Criteo rows, dim 16, Adam and row-wise Adagrad, 4 ranks x 128"
DENSE_DESCENT = "137k Criteo rows, dim 16, SGD .3 and row-wise Adagrad, 4 ranks x 128"
DESCENT = "137k Criteo rows, dim 16, SGD .3 and SGD 1 for tables, 4 ranks x 128"


def _source(bits: int) -> Source:
    return "abstract" if bits == 4 else "ours"


def collectives(judged: Judged) -> list[Claim]:
    """Decide about each collective alone."""
    claims: list[Claim] = []
    for bits in (4, 8, 2):
        claims += judged.no_loss(
            f"The all-to-all of rows, of their gradients, and both go to {bits} bits with no "
            "accuracy loss",
            source=_source(bits),
            setting=ADAM,
            names=[f"a2a_{direction}_int{bits}" for direction in DIRECTIONS]
            + ["int4"] * (bits == 4),
        )
    for bits in (4, 8, 2):
        claims += all_reduce(judged, bits, ALGORITHMS, ADAM)
    for bits in (4, 8, 2):
        pairs = [(f"{name}_int{bits}_feedback", f"{name}_int{bits}") for name in ALGORITHMS]
        claims += compensation(judged, f"the all-reduce in {bits} bits", pairs, ADAM)
    return claims


def together(judged: Judged) -> list[Claim]:
    """Decide the headline."""
    return judged.no_loss(
        "All three collectives go to 4 bits, at once, with no accuracy loss",
        source="abstract",
        setting=f"{ADAM}, recursive doubling, error not carried forward",
        names=["all_int4"],
    )


def dense_descent(judged: Judged) -> list[Claim]:
    """Decide about the all-reduce under plain gradient descent of the dense layers."""
    claims: list[Claim] = []
    for bits in (4, 8, 2):
        claims += all_reduce(judged, bits, ["ring"], DENSE_DESCENT)
    for bits in (4, 2):
        pairs = [(f"ring_int{bits}_feedback", f"ring_int{bits}")]
        claims += compensation(judged, f"the all-reduce in {bits} bits", pairs, DENSE_DESCENT)
    return claims


def descent(judged: Judged) -> list[Claim]:
    """Decide the headline under plain gradient descent of all parameters."""
    return judged.no_loss(
        "All three collectives go to 4 bits, at once, with no accuracy loss",
        source="abstract",
        setting=f"{DESCENT}, recursive doubling, error not carried forward",
        names=["all_int4"],
        note="float32 is itself at an NE of .92 here, so the model has learned little",
    )


def compensated_rows(judged: Judged) -> list[Claim]:
    """Decide whether feedback by id helps the all-to-all."""
    claims: list[Claim] = []
    for bits in (3, 2):
        for direction, what in (("backward", "gradients of rows"), ("forward", "rows")):
            pairs = [(f"{direction}_{bits}_compensated", f"{direction}_{bits}")]
            title = f"the all-to-all of {what} in {bits} bits"
            claims += compensation(judged, title, pairs, f"{ADAM}, distinct bags")
    return claims


def all_reduce(judged: Judged, bits: int, algorithms: Sequence[str], setting: str) -> list[Claim]:
    """Return the claims about the all-reduce in so many bits, without and with feedback."""
    claims: list[Claim] = []
    for end, what in (("", "error not carried forward"), ("_feedback", "error carried forward")):
        claims += judged.no_loss(
            f"The dense all-reduce goes to {bits} bits with no accuracy loss, {what}",
            source=_source(bits),
            setting=setting,
            names=[f"{algorithm}_int{bits}{end}" for algorithm in algorithms],
        )
    return claims


def compensation(
    judged: Judged, what: str, pairs: Sequence[tuple[str, str]], setting: str
) -> list[Claim]:
    """Return the claim that carrying the error forward lowers the losses; none without records.

    Args: what: the collective.  pairs: names of configurations with feedback and without.
    """
    changes = {ours: judged.changes(ours, base) for ours, base in pairs if ours in judged.verdicts}
    changes = {name: change for name, change in changes.items() if change}
    if not changes:
        return []
    decision: Decision = all_of([lower(change) for change in changes.values()])
    numbers = sorted(change.n for by_metric in changes.values() for change in by_metric.values())
    return [
        claim_of(
            decision,
            f"To carry the error forward makes {what} better",
            source="ours",
            setting=f"{setting}; {seeds_of(numbers)}",
            result="<br>".join(
                f"`{name}` against without: {as_text(change)}" for name, change in changes.items()
            ),
        )
    ]
