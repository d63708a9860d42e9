"""What trainings decide about quantized collectives.

Knows: records of trainings, the paper's claims. Does not know: how they were run.
Source of the claims: the abstract of Yang et al. 2020: all three collectives go to 4 bits without
a loss of accuracy, the all-reduce by ring or recursive doubling, with or without the error carried
forward. What is said of 8 and 2 bits, and of what the carried error is good for, is our reading.
"""

from __future__ import annotations

from collections.abc import Sequence

from examples.papers.claims import Claim, Source
from examples.papers.collectives.configs import ALGORITHMS, DIRECTIONS, GRAINS, name_of_grain
from examples.papers.comparisons import lower_losses
from examples.papers.trainings import Judged

ADAM = "137k Criteo rows, dim 16, Adam and row-wise Adagrad, 4 ranks x 128"
OF_RANKS = "137k Criteo rows, dim 16, Adam and row-wise Adagrad, {num_ranks} ranks x {batch_size}"
SAMPLES = 512  # of all ranks, in one step
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
    claims += algorithms(judged, 4, ADAM)
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


def grains(judged: Judged) -> list[Claim]:
    """Decide about the all-reduce in 4 bits by how many values share a scale."""
    finer = [name_of_grain(grain) for grain in GRAINS if grain != "tensor"]
    coarsest = name_of_grain("tensor")
    return [
        *judged.no_loss(
            "The dense all-reduce goes to 4 bits with no accuracy loss, with a scale for each row "
            "of a layer, or for 32, 64 or 128 values",
            source="ours",
            setting=f"{ADAM}, ring, error not carried forward",
            names=finer,
            note="grains of table rows: a config gives each row one scale",
        ),
        *judged.no_loss(
            "The dense all-reduce goes to 4 bits with no accuracy loss, with one scale a parameter",
            source="ours",
            setting=f"{ADAM}, ring, error not carried forward",
            names=[coarsest],
        ),
        *lower_losses(
            judged,
            "A finer grain makes the dense all-reduce in 4 bits better than one scale a parameter",
            source="ours",
            setting=f"{ADAM}, ring, error not carried forward",
            pairs=[(name, coarsest) for name in finer],
        ),
    ]


def of_ranks(judged: Judged, num_ranks: int) -> list[Claim]:
    """Decide about the all-reduce in 4 bits on so many ranks, with equal samples a step."""
    setting = OF_RANKS.format(num_ranks=num_ranks, batch_size=SAMPLES // num_ranks)
    return [
        *judged.no_loss(
            f"The dense all-reduce goes to 4 bits on {num_ranks} ranks with no accuracy loss",
            source="abstract",
            setting=f"{setting}, error not carried forward",
            names=[f"{algorithm}_int4" for algorithm in ALGORITHMS],
        ),
        *algorithms(judged, num_ranks, setting),
    ]


def algorithms(judged: Judged, num_ranks: int, setting: str) -> list[Claim]:
    """Decide whether recursive doubling loses less than a ring on so many ranks."""
    ring, doubling = (f"{algorithm}_int4" for algorithm in ALGORITHMS)
    return lower_losses(
        judged,
        f"On {num_ranks} ranks, recursive doubling makes the all-reduce in 4 bits better than a "
        "ring",
        source="ours",
        setting=f"{setting}, error not carried forward",
        pairs=[(doubling, ring)],
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
    return lower_losses(
        judged,
        f"To carry the error forward makes {what} better",
        source="ours", setting=setting, pairs=pairs, base="without",
    )  # fmt: skip
