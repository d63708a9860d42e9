"""Output of the simulation: tables, a last line, records."""

from collections.abc import Sequence
from dataclasses import asdict

from trec_qcomm.lab.records import BreakEvenRecord, ScaleRecord, ValidationRecord
from trec_qcomm.lab.simulate.step import PARTS, Configuration, Step
from trec_qcomm.lab.simulate.validation import WITHIN, Fit, Prediction

GBIT_S = 8.0  # a GB/s
MOST_GBIT_S = 10_000  # no network gives a GPU as much; limits beyond are not told
ASSUMED = (
    "assumed, not measured: encode and decode throughput, tflop-s, memory-gb-s, nvlink-gb-s, both "
    "latencies, overlap (unless given, that of gloo on CPUs); no GPU was used, and the validation "
    "tests neither two link levels nor times of codecs and lookups"
)
EXTRAPOLATED = "EXTRAPOLATED"  # the mark of what no run has tested
UNTESTED = ("seconds", "hop inside a node", "more ranks than 8")


def validation_text(fit: Fit, predictions: Sequence[Prediction]) -> str:
    """Return a line for each measured step, and what they come to."""
    head = (
        "hosts",
        "plan",
        "link",
        "configuration",
        "predicted [ms]",
        "measured [ms]",
        "ratio",
        "",
    )
    lines: list[tuple[str, ...]] = [head]
    for p in sorted(predictions, key=lambda p: (p.step.num_hosts, p.step.plan, p.step.gb_s)):
        notes = (["fitted on"] if p.is_fitted else []) + ([] if p.holds else ["NOT WITHIN 20 %"])
        milliseconds = (f"{1e3 * p.predicted_s:.0f}", f"{1e3 * p.step.step_s:.0f}")
        where = (p.step.hosts, p.step.plan, p.step.rate, p.step.configuration)
        lines.append((*where, *milliseconds, f"{p.ratio:.2f}", ", ".join(notes)))
    return "\n".join(
        [
            "Validation: a step between emulated hosts, from the same step without a limit "
            "(of what follows it tests the bytes that are sent, and overlap; no more)",
            table(lines),
            f"fitted: wait {fit.wait:g}, overlap {fit.overlap:g}; {validation_line(predictions)}",
        ]
    )


def validation_line(predictions: Sequence[Prediction]) -> str:
    """Return how many steps that the fit has not seen are predicted within 20 %, by hosts."""
    parts = []
    for hosts in sorted({p.step.hosts for p in predictions}):
        unseen = [p for p in predictions if p.step.hosts == hosts and not p.is_fitted]
        parts.append(f"{sum(p.holds for p in unseen)} of {len(unseen)} on {hosts} hosts")
    return f"predicted within {WITHIN:.0%}, runs not fitted on: {', '.join(parts)}"


def configurations_text(configurations: Sequence[Configuration]) -> str:
    """Return what was measured of each configuration."""
    head = ("configuration", "distinct bags", "forward", "backward", "dense", "sizes first")
    lines: list[tuple[str, ...]] = [head]
    for c in configurations:
        ratios = (f"{ratio:.2f}x" for ratio in (c.forward, c.backward, c.dense))
        sizes_first = "yes" if c.sizes_first else "no"
        lines.append((c.name, f"{c.distinct_share:.3f}", *ratios, sizes_first))
    return f"Measured ratios, of what is left of the bags\n{table(lines)}"


def scale_text(cases: Sequence[ScaleRecord]) -> str:
    """Return a table for each link between nodes: steps in ms and shares of communication."""
    names = list(dict.fromkeys(case.configuration for case in cases))
    texts = []
    for speed in dict.fromkeys(case.network_gbit_s for case in cases):
        at = [case for case in cases if case.network_gbit_s == speed]
        lines: list[tuple[str, ...]] = [("plan", "GPUs", *names)]
        for plan, num in dict.fromkeys((case.plan, case.num_gpus) for case in at):
            row = {c.configuration: c for c in at if (c.plan, c.num_gpus) == (plan, num)}
            cells = (f"{1e3 * c.step_s:.2f}, {c.communication_share:.0%}" for c in row.values())
            lines.append((plan, str(num), *cells))
        title = f"{EXTRAPOLATED}, {speed:g} Gbit/s between nodes: step [ms], communication's share"
        texts.append(f"{title}\n{table(lines)}")
    return "\n\n".join(texts)


def parts_text(cases: Sequence[ScaleRecord]) -> str:
    """Return a table for each case of plan, GPUs and link: ms of each part of a step."""
    texts = []
    for where in dict.fromkeys((c.network_gbit_s, c.plan, c.num_gpus) for c in cases):
        at = [c for c in cases if (c.network_gbit_s, c.plan, c.num_gpus) == where]
        lines: list[tuple[str, ...]] = [("", *PARTS, "step")]
        for c in at:
            cells = (f"{1e3 * c.parts_s[part]:.3f}" for part in PARTS)
            lines.append((c.configuration, *cells, f"{1e3 * c.step_s:.3f}"))
        speed, plan, num = where
        title = f"{EXTRAPOLATED}, parts of a step [ms]: {plan}, {num} GPUs, {speed:g} Gbit/s"
        texts.append(f"{title}\n{table(lines)}")
    return "\n\n".join(texts)


def choice_text(cases: Sequence[ScaleRecord], base: str) -> str:
    """Return what to take: the shortest step, and how much shorter than the baseline's shortest."""
    lines: list[tuple[str, ...]] = [("link", "GPUs", "shortest", f"shortest of {base}", "gain")]
    for speed, num in dict.fromkeys((c.network_gbit_s, c.num_gpus) for c in cases):
        at = [c for c in cases if (c.network_gbit_s, c.num_gpus) == (speed, num)]
        best = min(at, key=lambda c: c.step_s)
        plain = min((c for c in at if c.configuration == base), key=lambda c: c.step_s)
        gain = plain.step_s / best.step_s
        words = [f"{c.configuration} {c.plan}, {1e3 * c.step_s:.2f} ms" for c in (best, plain)]
        lines.append((f"{speed:g} Gbit/s", str(num), *words, f"{gain:.2f}x"))
    return f"{EXTRAPOLATED}: what to take, of these plans and configurations\n{table(lines)}"


def limits_text(limits: Sequence[BreakEvenRecord], base: str) -> str:
    """Return a line for each plan and number of GPUs, a column for each configuration."""
    names = list(dict.fromkeys(limit.configuration for limit in limits))
    lines: list[tuple[str, ...]] = [("plan", "GPUs", *names)]
    for plan, num in dict.fromkeys((limit.plan, limit.num_gpus) for limit in limits):
        row = [limit_cell(m) for m in limits if (m.plan, m.num_gpus) == (plan, num)]
        lines.append((plan, str(num), *row))
    limit = "link between nodes [Gbit/s] above which a step is no shorter than"
    title = f"{EXTRAPOLATED}: {limit} {base}'s"
    return f"{title}\n{table(lines)}"


def limit_cell(limit: BreakEvenRecord) -> str:
    """Return a speed, or a word: it pays on any link between nodes (`always`), or on none."""
    if limit.network_gbit_s is None:
        return limit.pays
    is_told = limit.network_gbit_s <= MOST_GBIT_S
    return f"{limit.network_gbit_s:.0f}" if is_told else f">{MOST_GBIT_S}"


def table(lines: Sequence[Sequence[str]]) -> str:
    """Return lines with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def last_line(predictions: Sequence[Prediction], cases: Sequence[ScaleRecord], base: str) -> str:
    """Return the validation, and in how many cases each configuration makes a step shorter."""
    steps = {(c.configuration, c.num_gpus, c.plan, c.network_gbit_s): c.step_s for c in cases}
    text = validation_line(predictions)
    for name in dict.fromkeys(c.configuration for c in cases if c.configuration != base):
        keys = [key for key in steps if key[0] == name]
        shorter = sum(steps[key] < steps[base, *key[1:]] for key in keys)
        text += f"; {name} shorter than {base} in {shorter} of {len(keys)} cases"
    return f"{text}; throughputs assumed"


def validation_records(fit: Fit, predictions: Sequence[Prediction]) -> list[ValidationRecord]:
    """Return the records of the predictions."""
    return [
        ValidationRecord(
            configuration=p.step.configuration, num_hosts=p.step.num_hosts,
            ranks_per_host=p.step.ranks_per_host, rate=p.step.rate, predicted_s=p.predicted_s,
            measured_s=p.step.step_s, is_fitted=p.is_fitted, fit=asdict(fit), plan=p.step.plan,
        )
        for p in predictions
    ]  # fmt: skip


def extrapolated(step: Step) -> tuple[str, ...]:
    """Return what of a step no run has tested."""
    return (*UNTESTED, "sync") if step.parts_s["sync"] else UNTESTED
