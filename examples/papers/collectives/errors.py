"""What measured errors decide about quantized collectives; all claims are our reading.

Knows: names and numbers of the measurements. Does not know: how they were measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from statistics import mean

from examples.papers.claims import FAILS, HOLDS, OPEN, Claim
from examples.papers.decisions import Decision
from examples.papers.measured import feedback, gradients, grain, ranks
from examples.papers.measurements import Values
from examples.papers.trainings import claim_of

Measured = Mapping[str, Values]
EXACT_TO = 1e-5  # of the largest sum: some hundred float32 roundings


def telescoping(measured: Measured) -> list[Claim]:
    """Decide whether what was sent and what is kept are what there was."""
    is_kept = all(values["kept"] <= EXACT_TO < values["lost"] for values in measured.values())
    result = "<br>".join(
        f"{name}: {values['kept']:.0e}, without {values['lost']:.0e}"
        for name, values in measured.items()
    )
    return [
        claim_of(
            Decision(HOLDS if is_kept else FAILS),
            "With the error carried forward, all that was sent and the last residual are the sum "
            "of what was to be sent",
            source="ours",
            setting=feedback.SETTING,
            result=f"largest difference, as a share of the largest sum: {result}",
        )
    ]


def grains(measured: Measured) -> list[Claim]:
    """Decide whether a finer grain has less error."""
    claims = []
    for kind in grain.KINDS:
        by_grain = {g: measured[f"{kind}, {g}"] for g in grain.GRAINS if f"{kind}, {g}" in measured}
        if len(by_grain) < len(grain.GRAINS):
            continue
        claims.append(_grain(kind, by_grain))
    return claims


def _grain(kind: str, by_grain: Mapping[str, Values]) -> Claim:
    """Decide about one kind of values, by each seed: finer blocks against the whole tensor."""
    seeds = _seeds(by_grain["tensor"])
    finer = [g for g in by_grain if g != "tensor"]
    wins = [by_grain[g][seed] < by_grain["tensor"][seed] for g in finer for seed in seeds]
    ordered = [
        by_grain[a][seed] < by_grain[b][seed]
        for a, b in (("32", "64"), ("64", "128"), ("128", "tensor")) for seed in seeds
    ]  # fmt: skip
    result = "<br>".join(
        f"{g}: error {100 * mean(values[s] for s in seeds):.1f} %, "
        f"{values['bytes a value']:.2f} bytes a value"
        for g, values in by_grain.items()
    )
    return claim_of(
        _by_seeds([*wins, *ordered]),
        f"A finer grain has less error, of {kind} in 4 bits",
        source="ours",
        setting=f"{gradients.SETTING}; {len(seeds)} seeds",
        result=result,
        note="" if kind == "dense gradients" else "trainings: a config gives each row one scale",
    )


def by_ranks(measured: Measured) -> list[Claim]:
    """Decide whether recursive doubling has less error than a ring on many ranks."""
    claims = []
    for rounding in ("nearest", "stochastic"):
        errors = {
            (algorithm, n): measured[f"{algorithm} {rounding} {n}"]
            for algorithm in ranks.ALGORITHMS
            for n in ranks.NUM_RANKS
            if f"{algorithm} {rounding} {n}" in measured
        }
        numbers = sorted({n for _, n in errors})
        if len(errors) == len(ranks.ALGORITHMS) * len(numbers) and numbers:
            claims += _ranks(rounding, errors, numbers)
    return claims


def _ranks(
    rounding: str, errors: Mapping[tuple[str, int], Values], numbers: list[int]
) -> list[Claim]:
    first, last = numbers[0], numbers[-1]
    seeds = _seeds(errors["ring", first])
    setting = f"{gradients.SETTING}, 4 bits in blocks of 128, {rounding}; {len(seeds)} seeds"
    means = {key: mean(values[seed] for seed in seeds) for key, values in errors.items()}
    wins = [
        errors["recursive_doubling", n][s] < errors["ring", n][s]
        for n in numbers if n >= 16 for s in seeds
    ]  # fmt: skip
    result = "; ".join(
        f"{n} ranks {100 * means['ring', n]:.0f} %, {100 * means['recursive_doubling', n]:.0f} %"
        for n in numbers
    )
    growth = {a: means[a, last] / means[a, first] for a in ranks.ALGORITHMS}
    as_counted = {"ring": last / first, "recursive_doubling": log2(last) / log2(first)}
    is_as_counted = all(growth[a] >= as_counted[a] for a in ranks.ALGORITHMS)
    return [
        claim_of(
            _by_seeds(wins),
            "On 16 ranks and more, recursive doubling has less error than a ring",
            source="ours", setting=setting,
            result=f"error of the sum by ring, by recursive doubling: {result}",
            note="trainings on 32 ranks and more",
        ),
        claim_of(
            Decision(HOLDS if is_as_counted else FAILS),
            "The error grows with the number of quantizations: as N in a ring, as log2 N by "
            "recursive doubling",
            source="ours", setting=setting,
            result=f"from {first} to {last} ranks " + ", ".join(
                f"{a.replace('_', ' ')} x{growth[a]:.1f} (counted: x{as_counted[a]:.0f})"
                for a in ranks.ALGORITHMS
            ),
        ),
    ]  # fmt: skip


def _by_seeds(wins: list[bool]) -> Decision:
    """Decide about a comparison of errors: all seeds and sizes have to agree."""
    if not wins or all(wins):
        return Decision(HOLDS) if wins else Decision(OPEN, "measurements of 16 ranks and more")
    return Decision(FAILS) if not any(wins) else Decision(OPEN, "seeds or sizes disagree")


def _seeds(values: Values) -> list[str]:
    return [name for name in values if name.startswith("seed ")]
