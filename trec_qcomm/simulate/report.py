"""What the simulation says: tables, a last line, records. See __main__ for their fields."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trec_qcomm.simulate.step import BreakEven, Step, Way
from trec_qcomm.simulate.validation import WITHIN, Fit, Prediction

GBIT_S = 8.0  # a GB/s
MOST_GBIT_S = 10_000  # no network gives a GPU as much; limits beyond are not told
ASSUMED = (
    "assumed, not measured: encode and decode throughput, tflop-s, memory-gb-s, nvlink-gb-s, both "
    "latencies, overlap (unless given, that of gloo on CPUs); no GPU was used, and the validation "
    "tests neither plans nor two link levels nor times of codecs and lookups"
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One simulated step. Args: network_gbit_s: between nodes, a GPU."""

    way: str
    num_gpus: int
    plan: str
    network_gbit_s: float
    step: Step


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Where a way stops to pay."""

    way: str
    num_gpus: int
    plan: str
    found: BreakEven


def validation_text(fit: Fit, predictions: Sequence[Prediction]) -> str:
    """A line a run, and what they come to."""
    head = ("hosts", "link", "way", "predicted [ms]", "measured [ms]", "ratio", "")
    lines: list[tuple[str, ...]] = [head]
    for p in sorted(predictions, key=lambda p: (p.run.hosts, p.run.gb_s)):
        notes = (["fitted on"] if p.fitted else []) + ([] if p.holds else ["NOT WITHIN 20 %"])
        milliseconds = (f"{1e3 * p.predicted_s:.0f}", f"{1e3 * p.run.step_s:.0f}")
        where = (str(p.run.hosts), p.run.rate, p.run.way)
        lines.append((*where, *milliseconds, f"{p.ratio:.2f}", ", ".join(notes)))
    return "\n".join(
        [
            "Validation: a step between emulated hosts, from the same way's step without a limit "
            "(of what follows it tests the bytes that are sent, and overlap; no more)",
            table(lines),
            f"fitted: wait {fit.wait:g}, overlap {fit.overlap:g}; {validation_line(predictions)}",
        ]
    )


def validation_line(predictions: Sequence[Prediction]) -> str:
    """How many of the runs that the fit has not seen are predicted within 20 %, by hosts."""
    parts = []
    for hosts in sorted({p.run.hosts for p in predictions}):
        unseen = [p for p in predictions if p.run.hosts == hosts and not p.fitted]
        parts.append(f"{sum(p.holds for p in unseen)} of {len(unseen)} on {hosts} hosts")
    return f"predicted within {WITHIN:.0%}, runs not fitted on: {', '.join(parts)}"


def ways_text(ways: Sequence[Way]) -> str:
    """What was measured of each way."""
    head = ("way", "distinct bags", "forward", "backward", "dense", "sizes first")
    lines: list[tuple[str, ...]] = [head]
    for w in ways:
        ratios = (f"{ratio:.2f}x" for ratio in (w.forward, w.backward, w.dense))
        lines.append((w.name, f"{w.distinct:.3f}", *ratios, "yes" if w.sizes_first else "no"))
    return f"Measured ratios, of what is left of the bags\n{table(lines)}"


def scale_text(cases: Sequence[Case]) -> str:
    """A table for each link between nodes: step in ms and share of communication, by way."""
    ways = list(dict.fromkeys(case.way for case in cases))
    texts = []
    for speed in dict.fromkeys(case.network_gbit_s for case in cases):
        at = [case for case in cases if case.network_gbit_s == speed]
        lines: list[tuple[str, ...]] = [("plan", "GPUs", *ways)]
        for plan, num in dict.fromkeys((case.plan, case.num_gpus) for case in at):
            row = {c.way: c.step for c in at if (c.plan, c.num_gpus) == (plan, num)}
            lines.append((plan, str(num), *(_cell(row[way]) for way in ways)))
        title = f"{speed:g} Gbit/s between nodes: step [ms], share of communication"
        texts.append(f"{title}\n{table(lines)}")
    return "\n\n".join(texts)


def _cell(step: Step) -> str:
    return f"{1e3 * step.step_s:.2f}, {step.communication_share:.0%}"


def limits_text(limits: Sequence[Limit], base: str) -> str:
    """A line for each plan and number of GPUs, a column a way."""
    ways = list(dict.fromkeys(limit.way for limit in limits))
    lines: list[tuple[str, ...]] = [("plan", "GPUs", *ways)]
    for plan, num in dict.fromkeys((limit.plan, limit.num_gpus) for limit in limits):
        row = {m.way: m.found for m in limits if (m.plan, m.num_gpus) == (plan, num)}
        lines.append((plan, str(num), *(limit_cell(row[way]) for way in ways)))
    title = f"Link between nodes [Gbit/s] above which a step is no shorter than {base}'s"
    return f"{title}\n{table(lines)}"


def limit_cell(found: BreakEven) -> str:
    """A speed, or a word: `always`: it pays on any link between nodes; `never`: on none."""
    if found.gb_s is None:
        return found.pays
    gbit_s = found.gb_s * GBIT_S
    return f">{MOST_GBIT_S}" if gbit_s > MOST_GBIT_S else f"{gbit_s:.0f}"


def table(lines: Sequence[Sequence[str]]) -> str:
    """Columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def last_line(predictions: Sequence[Prediction], cases: Sequence[Case], base: str) -> str:
    """Validation, and in how many cases each way makes a step shorter."""
    steps = {(c.way, c.num_gpus, c.plan, c.network_gbit_s): c.step.step_s for c in cases}
    text = validation_line(predictions)
    for way in dict.fromkeys(c.way for c in cases if c.way != base):
        own = [key for key in steps if key[0] == way]
        shorter = sum(steps[key] < steps[base, *key[1:]] for key in own)
        text += f"; {way} shorter than {base} in {shorter} of {len(own)} cases"
    return f"{text}; throughputs assumed"


def validation_records(fit: Fit, predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Objects with "simulate": "validation"."""
    return [
        {
            "simulate": "validation",
            "way": p.run.way,
            "hosts": p.run.hosts,
            "rate": p.run.rate,
            "predicted_s": p.predicted_s,
            "measured_s": p.run.step_s,
            "fitted": p.fitted,
            "fit": asdict(fit),
        }
        for p in predictions
    ]


def scale_records(cases: Sequence[Case], assumed: dict[str, Any]) -> list[dict[str, Any]]:
    """Objects with "simulate": "scale"."""
    return [
        {
            "simulate": "scale",
            "way": c.way,
            "num_gpus": c.num_gpus,
            "plan": c.plan,
            "network_gbit_s": c.network_gbit_s,
            "step_s": c.step.step_s,
            "communication_share": c.step.communication_share,
            "parts_s": c.step.parts_s,
            "assumed": assumed,
        }
        for c in cases
    ]


def limit_records(
    limits: Sequence[Limit], base: str, assumed: dict[str, Any]
) -> list[dict[str, Any]]:
    """Objects with "simulate": "break_even"."""
    return [
        {
            "simulate": "break_even",
            "way": m.way,
            "against": base,
            "num_gpus": m.num_gpus,
            "plan": m.plan,
            "pays": m.found.pays,
            "network_gbit_s": None if m.found.gb_s is None else m.found.gb_s * GBIT_S,
            "assumed": assumed,
        }
        for m in limits
    ]
