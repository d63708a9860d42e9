"""The table of lifespan.py: what each drift cost with fixed codecs, and with a guard over them.

Knows: lives, statistics of pairs. Does not know: how to train.
"""

from __future__ import annotations

from collections.abc import Mapping

from life.lives import Lives, Reaction
from trec_qcomm.lab.records import TrainingRecord
from trec_qcomm.lab.study.paired import Change, percent

HEAD = (
    "| drift | seeds | null, % | fixed, % | guard, % | fixed, codecs on for off, % | "
    "guard, the same, % | trips before | probes until it trips | tables it moved | "
    "bytes, fixed | guard |"
)


def table_of(lives: Lives) -> str:
    """Return one row a drift, in Markdown. Changes of the loss of the test, against float32."""
    lines = [HEAD, "|" + "---|" * (HEAD.count("|") - 1)]
    return "\n".join(lines + [_row(lives, drift) for drift in lives.drifts])


def _row(lives: Lives, drift: str) -> str:
    exact = lives.of_drift(drift, "fp32")
    cells = [drift, str(len(lives.of_drift(drift, "guard")))]
    for name in ("null", "fixed", "guard"):
        cells.append(_against(lives.of_drift(drift, name), exact))
    for name in ("fixed", "guard"):
        cells.append(_on_for_off(lives.of_drift(drift, name)))
    reactions = reactions_to(lives, drift)
    cells.append(str(sum(r.false_trips for r in reactions.values())))
    cells.append(_joined(str(r.probes_until_trip or "none") for r in reactions.values()))
    cells.append(_joined(" ".join(r.tables) or "none" for r in reactions.values()))
    cells += [_bytes(lives, drift, name) for name in ("fixed", "guard")]
    return "| " + " | ".join(cells) + " |"


def reactions_to(lives: Lives, drift: str) -> dict[int, Reaction]:
    """Return what the guard did by seed."""
    reactions = {}
    for seed, training in lives.of_drift(drift, "guard").items():
        at_step = None if drift == "none" else int(training.setup["at_step"])
        run = training.run or ""
        reactions[seed] = Reaction.from_records(lives.events[run], lives.probes[run], at_step)
    return reactions


def _against(ours: Mapping[int, TrainingRecord], exact: Mapping[int, TrainingRecord]) -> str:
    pairs = [
        (r.metrics["logloss"], exact[s].metrics["logloss"])
        for s, r in ours.items()
        if s in exact and r.metrics
    ]
    return str(Change.from_percents([percent(*pair) for pair in pairs])) if pairs else ""


def _on_for_off(ours: Mapping[int, TrainingRecord]) -> str:
    pairs = [(r.metrics["logloss"], r.metrics_exact["logloss"]) for r in ours.values() if r.metrics]
    return str(Change.from_percents([percent(*pair) for pair in pairs])) if pairs else ""


def _joined(words) -> str:
    """Return words, one a seed, each once with how often."""
    words = list(words)
    return ", ".join(f"{word} ({words.count(word)}x)" for word in dict.fromkeys(words))


def _bytes(lives: Lives, drift: str, name: str) -> str:
    """Return the bytes of rows and gradients at the end, as a share of float32's."""
    shares = []
    for seed in lives.of_drift(drift, name):
        (_, ours), (_, exact) = (lives.nbytes(f"{drift} {n} {seed}") for n in (name, "fp32"))
        shares += [ours[-1] / exact[-1]] if len(ours) and len(exact) else []
    return f"{100 * sum(shares) / len(shares):.1f} %" if shares else ""
