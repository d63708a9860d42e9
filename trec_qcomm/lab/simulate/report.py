"""Output of the simulation: tables and a last line."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from trec_qcomm.core.aligned import aligned
from trec_qcomm.lab.records import BreakEvenRecord, ScaleRecord, ValidationRecord
from trec_qcomm.lab.simulate.measured import hosts_text
from trec_qcomm.lab.simulate.step import PARTS, Configuration
from trec_qcomm.lab.simulate.validation import WITHIN, holds

MOST_GBIT_S = 10_000  # no network gives a GPU as much; limits beyond are not told
ASSUMED = (
    "assumed, not measured: encode and decode throughput, tflop-s, memory-gb-s, nvlink-gb-s, both "
    "latencies, overlap (unless given, that of gloo on CPUs); no GPU was used, and the validation "
    "tests neither two link levels nor times of codecs and lookups"
)
EXTRAPOLATED = "EXTRAPOLATED"  # the mark of what no run has tested
UNTESTED = ("seconds", "hop inside a node", "more ranks than 8")


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return lines in columns of equal width, below a title."""
    return f"{title}\n{aligned([head, *rows])}"


def validation_text(predictions: Sequence[ValidationRecord]) -> str:
    """Return a line for each measured step, and a summary."""
    rows = []
    for p in predictions:
        notes = ["fitted on"] * p.is_fitted + ["NOT WITHIN 20 %"] * (not holds(p))
        milliseconds = (f"{1e3 * p.predicted_s:.0f}", f"{1e3 * p.measured_s:.0f}")
        where = (hosts_text(p), p.plan or "", p.rate, p.configuration or "")
        ratio = f"{p.predicted_s / p.measured_s:.2f}"
        rows.append((*where, *milliseconds, ratio, ", ".join(notes)))
    title = (
        "Validation: a step between emulated hosts, from the same step without a limit "
        "(of what follows it tests the bytes that are sent, and overlap; no more)"
    )
    head = ("hosts", "plan", "link", "configuration", "predicted [ms]", "measured [ms]", "ratio")
    fitted = ", ".join(f"{name} {value:g}" for name, value in predictions[0].fit.items())
    lines = table(title, (*head, ""), rows)
    return f"{lines}\nfitted: {fitted}; {validation_line(predictions)}"


def validation_line(predictions: Sequence[ValidationRecord]) -> str:
    """Return how many steps that the fit has not seen are predicted within 20 %, by hosts."""
    unseen: dict[str, list[bool]] = {}
    for p in predictions:
        unseen.setdefault(hosts_text(p), []).extend([holds(p)] * (not p.is_fitted))
    parts = (f"{sum(held)} of {len(held)} on {hosts} hosts" for hosts, held in unseen.items())
    return f"predicted within {WITHIN:.0%}, runs not fitted on: {', '.join(parts)}"


def configurations_text(configurations: Sequence[Configuration]) -> str:
    """Return the measurements of each configuration."""
    rows = []
    for c in configurations:
        ratios = (f"{ratio:.2f}x" for ratio in (c.forward, c.backward, c.dense))
        rows.append((c.name, f"{c.distinct_share:.3f}", *ratios, "yes" if c.sizes_first else "no"))
    head = ("configuration", "distinct bags", "forward", "backward", "dense", "sizes first")
    return table("Measured ratios, of what is left of the bags", head, rows)


def scale_text(cases: Sequence[ScaleRecord]) -> str:
    """Return a table for each link between nodes: steps in ms and shares of communication."""
    return "\n\n".join(
        _by_cluster(
            f"{EXTRAPOLATED}, {speed:g} Gbit/s between nodes: step [ms], communication's share",
            [case for case in cases if case.network_gbit_s == speed],
            lambda c: f"{1e3 * c.step_s:.2f}, {c.communication_share:.0%}",
        )
        for speed in dict.fromkeys(case.network_gbit_s for case in cases)
    )


def limits_text(limits: Sequence[BreakEvenRecord], base: str) -> str:
    """Return a line for each plan and number of GPUs, a column for each configuration."""
    limit = "link between nodes [Gbit/s] above which a step is no shorter than"
    return _by_cluster(f"{EXTRAPOLATED}: {limit} {base}'s", limits, limit_cell)


def _by_cluster(
    title: str,
    records: Sequence[ScaleRecord] | Sequence[BreakEvenRecord],
    cell: Callable[[Any], str],
) -> str:
    rows: dict[tuple[str, str], list[str]] = {}
    for record in records:
        rows.setdefault((record.plan, str(record.num_gpus)), []).append(cell(record))
    head = ("plan", "GPUs", *dict.fromkeys(record.configuration for record in records))
    return table(title, head, [(*where, *cells) for where, cells in rows.items()])


def limit_cell(limit: BreakEvenRecord) -> str:
    """Return a speed, or a word: it pays on any link between nodes (`always`), or on none."""
    if limit.network_gbit_s is None:
        return limit.pays
    is_told = limit.network_gbit_s <= MOST_GBIT_S
    return f"{limit.network_gbit_s:.0f}" if is_told else f">{MOST_GBIT_S}"


def parts_text(cases: Sequence[ScaleRecord]) -> str:
    """Return a table for each case of plan, GPUs and link: ms of each part of a step."""
    rows: dict[tuple[float, str, int], list[tuple[str, ...]]] = {}
    for c in cases:
        seconds = [*(c.parts_s[part] for part in PARTS), c.step_s]
        row = (c.configuration, *(f"{1e3 * s:.3f}" for s in seconds))
        rows.setdefault((c.network_gbit_s, c.plan, c.num_gpus), []).append(row)
    return "\n\n".join(
        table(
            f"{EXTRAPOLATED}, parts of a step [ms]: {plan}, {num} GPUs, {speed:g} Gbit/s",
            ("", *PARTS, "step"),
            lines,
        )
        for (speed, plan, num), lines in rows.items()
    )
