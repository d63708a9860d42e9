"""What trainings decide about dynamic communication thresholding.

Knows: records of trainings, the paper's claims. Does not know: how they were run.
Source of the claims: the abstract of Gupta et al. 2021: 100 times less communication by data
parallelism and 20 times by model parallelism or more, without a loss, with a threshold that is
updated once every few thousand iterations.
"""

from __future__ import annotations

from examples.papers.claims import OPEN, Claim
from examples.papers.comparisons import lower_losses
from examples.papers.decisions import Decision, all_of, no_loss
from examples.papers.thresholds.configs import EQUAL, FALLS, LIVES
from examples.papers.trainings import Judged, as_text, claim_of

ADAM = "137k Criteo rows, dim 16, Adam and row-wise Adagrad, 4 ranks x 128"
DENSE_DESCENT = "137k Criteo rows, dim 16, SGD .3 and row-wise Adagrad, 4 ranks x 128"
OF_DENSE = "Gradients above a threshold are enough, data parallel, with no accuracy loss"


def data_parallel(judged: Judged) -> list[Claim]:
    """Decide about 1 % and .1 % of the gradients."""
    return judged.no_loss(
        OF_DENSE,
        source="abstract",
        setting=f"{ADAM}, the threshold anew every 10 steps, the rest kept",
        names=["threshold_0.01", "threshold_0.001"],
        note="a training of many thousand steps",
    )


def descent(judged: Judged) -> list[Claim]:
    """Decide about 1 % of the gradients under plain gradient descent."""
    return judged.no_loss(
        OF_DENSE,
        source="abstract",
        setting=f"{DENSE_DESCENT}, the threshold anew every 10 steps, the rest kept",
        names=["threshold_0.01"],
        note="float32 is itself 2 % worse here than with Adam",
    )


def model_parallel(judged: Judged) -> list[Claim]:
    """Decide about the largest columns of each row, half of them to a sixteenth."""
    return judged.no_loss(
        "The most relevant neurons of each sample are enough, model parallel, with no accuracy "
        "loss",
        source="abstract",
        setting=f"{ADAM}, .5 to .0625 of the columns of each row, `dct`: .1; codecs on when tested",
        names=["topk_0.5", "topk_0.25", "topk_0.125", "dct", "topk_0.0625"],
        note="a training of many thousand steps",
    )


def lives(judged: Judged) -> list[Claim]:
    """Decide whether a threshold may be used for long: L steps against 10."""
    there = [f"life_{n}" for n in LIVES if f"life_{n}" in judged.verdicts]
    changes = {name: judged.changes(name, "threshold_0.01") for name in there}
    changes = {name: change for name, change in changes.items() if change}
    seeds = judged.seeds(list(changes)) if changes else "no seeds"
    decisions = [no_loss(change) for name, change in changes.items() if name != "life_1"]
    decisions += [
        Decision(OPEN, f"trainings of life_{n}") for n in LIVES if f"life_{n}" not in there
    ]
    return [
        claim_of(
            all_of(decisions),
            "A threshold may be used for many iterations: for 50, 200 and 1000 steps it costs no "
            "more accuracy than for 10",
            source="ours",
            setting=f"{ADAM}, 1 % of the gradients; {seeds}",
            result="<br>".join(
                f"`{name}` against 10 steps: {as_text(change)}" for name, change in changes.items()
            )
            or "-",
            note="a threshold that is used for longer sends more (part `sent`); trainings of many "
            "thousand steps: these have 229, in which 1000 is once",
        ),
        *lower_losses(
            judged,
            "At equal bytes, a threshold that is anew every 10 steps loses less than one that is "
            "used for 50, 200 and 1000 steps",
            source="ours",
            setting=f"{ADAM}, 1 % of the gradients, against "
            f"{', '.join(f'{100 * density:g} %' for density in EQUAL.values())} every 10 steps",
            pairs=[(f"equal_{n}", f"life_{n}") for n in EQUAL],
        ),
    ]


def warm_up(judged: Judged) -> list[Claim]:
    """Decide about 1 % of the gradients after a density that falls to it from 25 %."""
    falling = [f"warm_up_{end}" for end in FALLS]
    setting = f"{ADAM}, the density falls exponentially from 25 % in so many of 229 steps"
    return [
        *judged.no_loss(
            "1 % of the gradients are enough after a density that falls to it, with no accuracy "
            "loss",
            source="ours",
            setting=setting,
            names=falling,
            note="a training of many thousand steps",
        ),
        *lower_losses(
            judged,
            "A density that falls to 1 % at the start loses less than 1 % throughout",
            source="ours",
            setting=setting,
            pairs=[(name, "threshold_0.01") for name in falling],
        ),
        *lower_losses(
            judged,
            "A density that falls to 1 % at the start loses less than its mean throughout",
            source="ours",
            setting=setting,
            pairs=[(falling[0], f"even_{FALLS[0]}")],
        ),
    ]


def scopes(judged: Judged) -> list[Claim]:
    """Decide about one threshold for all layers, which keeps 1 % of all gradients together."""
    setting = f"{ADAM}, 1 % of the gradients, the threshold anew every 10 steps, the rest kept"
    return [
        *judged.no_loss(
            "Gradients above one threshold for all layers are enough, with no accuracy loss",
            source="ours",
            setting=setting,
            names=["scope_global"],
        ),
        *lower_losses(
            judged,
            "One threshold for all layers loses less than one for each",
            source="ours",
            setting=setting,
            pairs=[("scope_global", "threshold_0.01")],
        ),
    ]


def row_thresholds(judged: Judged) -> list[Claim]:
    """Decide about a threshold of rows against as many columns of every row."""
    setting = f"{ADAM}, the threshold anew every 10 steps; codecs on when tested"
    return [
        *judged.no_loss(
            "Neurons above a threshold are enough, model parallel, with no accuracy loss",
            source="ours",
            setting=setting,
            names=["row_threshold_0.5", "row_threshold_0.1"],
        ),
        *lower_losses(
            judged,
            "A threshold for each table loses less than as many columns of every row",
            source="ours",
            setting=setting,
            pairs=[("row_threshold_0.5", "topk_0.5"), ("row_threshold_0.1", "dct")],
        ),
    ]


def hybrid(judged: Judged) -> list[Claim]:
    """Decide about both at once."""
    return judged.no_loss(
        "Data and model parallel thresholding go together with no accuracy loss",
        source="ours",
        setting=f"{ADAM}, 1 % of the gradients, .1 of the columns",
        names=["hybrid"],
    )
