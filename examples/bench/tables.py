"""All tables of the benches, from records: what the commands print, and pages.py puts into pages.

Knows: records. Does not know: pages, files.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from examples.criteo.studies import gaps
from trec_qcomm.lab import records
from trec_qcomm.lab.records import (
    TRAFFIC_GROUPS,
    CodecRecord,
    NetworkRecord,
    Percentiles,
    Record,
    StudyRecord,
)
from trec_qcomm.lab.simulate.between_hosts import sent_between_hosts

RATES = {
    "10mbit": "10 Mbit/s", "25mbit": "25 Mbit/s", "100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s",
    "10gbit": "10 Gbit/s", "none": "no limit",
}  # fmt: skip
METRICS = {"ne": "NE", "ndcg_10": "NDCG@10"}  # what a table shows of quality, the first there is
MOST_APART = 0.01  # of the kernel's count of bytes
# Parts of a step. They may overlap. Waiting for other hosts and TorchRec's rest are in none.
PARTS = ("lookup", "dense", "optimizer", "stock codec", "encode", "wire", "decode", "all-to-all")
PARTS += ("reader",)
CODEC_COLUMNS = ("ratio", "encode", "decode", "break-even", "error")
IN_SHORT = {
    "table_wise": ("stock", "stock_int8", "int8", "fast", "best"),
    "row_wise": ("stock", "int8", "fast", "best"),
}
RATES_IN_SHORT = ("25mbit", "100mbit", "1gbit", "none")
NOT_IN_LINKS = ("stock", "int4", "dct")
AUTO = ("stock", "int8", "fast", "best", "auto")
FAULTS = ("minutes", "steps", "losses_compared", "losses_different", "cuts", "kills")
SCALED = ("stock", "stock_fp16", "int8", "best")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def networks(measured: Sequence[NetworkRecord]) -> str:
    """Return a table for each plan, pipeline and number of hosts, and how they were measured."""
    labels = plan_labels(measured)
    places = sorted({_place_of(r, labels) for r in measured}, reverse=True)
    places.sort(key=lambda place: place[1:])
    parts = []
    for place in places:
        at_place = [r for r in measured if _place_of(r, labels) == place]
        parts.append(network_table(at_place, place[0]) + "\n")
    return "\n".join([*parts, network_origin(measured), ""])


def _place_of(record: NetworkRecord, labels: dict[str, str]) -> tuple[str, int, int]:
    pipeline = record.setup.get("pipeline")
    plan = labels[str(record.setup["plan"])] + (f", {pipeline}" if pipeline else "")
    return plan, record.num_hosts, record.ranks_per_host


def network_table(
    measured: Sequence[NetworkRecord], plan: str, rates: Sequence[str] | None = None
) -> str:
    """Return a line a configuration: bytes, and the step time at each rate.

    Args:
        measured: records of one plan, pipeline and number of hosts and of their ranks.
        plan: name of the plan.
        rates: rates that have a column; None: those that were measured.
    Raises: ValueError: a configuration's records have more than one config, setup or delay.
    """
    _check_alike(measured)
    rates = rates or _rates_of(measured)
    by_place = {(r.configuration, r.rate): r for r in measured}
    names = list(dict.fromkeys(r.configuration for r in measured))
    base, metric = "stock" if "stock" in names else names[0], _quality_metric(measured)
    steps = [f"{RATES.get(rate, rate)}: step" for rate in rates]
    rows = []
    for name in names:
        at_rates = [by_place.get((name, rate)) for rate in rates]
        last = next(record for record in reversed(at_rates) if record is not None)
        cells = [_sent(last, by_place.get((base, last.rate)))]
        for rate, record in zip(rates, at_rates, strict=True):
            cells.append("" if record is None else _step(record, by_place.get((base, rate))))
        rows.append([f"`{name}`", *cells, f"{last.metrics[metric]:.4f}"])
    head = [f"{hosts_text(measured[0])}, {plan}", "sent a step", *steps, METRICS[metric]]
    return markdown(head, rows)


def _sent(record: NetworkRecord, base: NetworkRecord | None) -> str:
    less = f", {sent_nbytes(base) / sent_nbytes(record):.1f}x less" if base else ""
    return f"{sent_nbytes(record) / 1e6:.2f} MB{less}"


def _step(record: NetworkRecord, base: NetworkRecord | None) -> str:
    faster = f", {base.step_s.p50 / record.step_s.p50:.1f}x" if base else ""
    return f"{1e3 * record.step_s.p50:.0f} ms{faster}"


def _rates_of(measured: Sequence[NetworkRecord]) -> list[str]:
    rates = dict.fromkeys(r.rate for r in measured)
    return [rate for rate in RATES if rate in rates] + [r for r in rates if r not in RATES]


def _check_alike(measured: Sequence[NetworkRecord]) -> None:
    """Raise ValueError unless each line of a table is of one measurement."""
    first: dict[str, NetworkRecord] = {}
    for record in measured:
        other = first.setdefault(record.configuration, record)
        ours, theirs = _identity(record), _identity(other)
        changed = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
        if changed:
            raise ValueError(
                f"{record.configuration} at {record.rate}: another {', '.join(changed)} than at "
                f"{other.rate}; a line of the table is of one"
            )


def _identity(record: NetworkRecord) -> dict[str, Any]:
    """Return all that a line has once: neither the rate nor the commit, which is told below."""
    fields = {name: getattr(record, name) for name in ("config", "num_steps", "delay")}
    return fields | dict(record.setup)


def network_origin(measured: Sequence[NetworkRecord]) -> str:
    """Return one sentence: model, commits, versions, machine."""
    first = measured[0]
    dim = first.setup.get("embedding_dim") or first.setup["dim"]
    return (
        f"{first.setup['batch_size']} samples a host, dim {dim}, "
        f"{first.num_steps} steps (median); {_made_with(measured)}, no GPU."
    )


def lengths(measured: Sequence[StudyRecord]) -> str:
    """Return gaps to float32 along long trainings, and how they were made."""
    hours = sum(r.seconds for r in measured) / 3600
    return f"{gaps.table(measured)}\n\n{hours:.1f} core-hours; {_made_with(measured)}.\n"


def _made_with(measured: Sequence[Record]) -> str:
    environments = [r.environment for r in measured if r.environment is not None]
    commits = ", ".join(sorted({str(e.commit) for e in environments}))
    versions = {name: number for e in environments for name, number in e.versions.items()}
    named = ", ".join(f"{name} {number}" for name, number in versions.items())
    hardware = environments[0].hardware
    return f"commit {commits}; {named}; {hardware['num_cpus']} cores in all ({hardware['cpu']})"


def network_details(measured: Sequence[NetworkRecord]) -> str:
    """Return what a section leaves out, of one network: spread, kinds of bytes, parts of a step.

    Bytes are those of a rank by our count, which plain TorchRec does not have. `apart` is between
    the kernel's count of a host and ours.
    """
    if not measured:
        return "nothing measured"
    labels, first, rows = plan_labels(measured), measured[0], []
    for r in measured:
        plan = f", {labels[str(r.setup['plan'])]}" if len(labels) > 1 else ""
        spread = f"{1e3 * r.step_s.p20:.0f} to {1e3 * r.step_s.p80:.0f}"
        kinds = [f"{n / 1e3:.0f}" for n in counted_nbytes(r).values()] if r.traffic else []
        difference = f"{apart(r):.1%}" if r.traffic else ""
        parts = [f"{1e3 * r.breakdown_s[p]:.1f}" if p in r.breakdown_s else "" for p in PARTS]
        rows.append([r.configuration + plan, spread, ", ".join(kinds), difference, *parts])
    delay = f", {first.delay} one way" if first.delay else ""
    head = ["", "step [ms], p20 to p80", f"{', '.join(TRAFFIC_GROUPS)} [KB]", "counts apart"]
    heads = [*head, *(f"{part} [ms]" for part in PARTS)]
    return f"{hosts_text(first)}, {first.rate}{delay}\n\n{markdown(heads, rows)}"


def verdict(measured: Sequence[Sequence[NetworkRecord]]) -> str:
    """Return one line: what the config with the fewest bytes gains on the slowest network."""
    slow = max((n for n in measured if n), key=lambda n: max(r.step_s.p50 for r in n))
    best = min(slow, key=sent_nbytes)
    gains = [
        f"{sent_nbytes(r) / sent_nbytes(best):.1f}x fewer bytes and "
        f"{r.step_s.p50 / best.step_s.p50:.1f}x the speed of {r.configuration}"
        for r in slow
        if r.configuration.startswith("stock")
    ]
    at = f"{best.num_hosts} hosts at {best.rate}"
    return f"{best.configuration} on {at}: {', '.join(gains) or 'nothing stock beside it'}"


def sent_nbytes(record: NetworkRecord) -> float:
    """Return the bytes of a step by the kernel's count, the mean over hosts."""
    return fmean(record.sent_nbytes)


def counted_nbytes(record: NetworkRecord, count: str = "wire_nbytes") -> dict[str, float]:
    """Return the bytes that a rank sends in a step by trec_qcomm's count, by kind; the mean."""
    ranks = record.traffic or ()
    return {
        group: sum(getattr(rank[k], count) or 0 for rank in ranks for k in kinds if k in rank)
        / max(len(ranks), 1)
        for group, kinds in TRAFFIC_GROUPS.items()
    }


def apart(record: NetworkRecord) -> float:
    """Return the difference of the two counts, as a share of the kernel's without headers.

    The kernel counts what leaves a host, so of several ranks on one that is what counts of ours.
    """
    ours = fmean(sum(host.values()) for host in sent_between_hosts(record))
    return abs(1 - ours / fmean(record.payload_nbytes))


def hosts_text(record: NetworkRecord) -> str:
    """Return the number of hosts, and that of the ranks of each where there are several."""
    each = f" of {record.ranks_per_host} ranks" if record.ranks_per_host > 1 else ""
    return f"{record.num_hosts} hosts{each}"


def plan_name(plan: str) -> str:
    """Return the name of a record's plan; for a plan file that has no name, its sharding."""
    return plan.split("sharding='", 1)[1].split("'", 1)[0] if plan.startswith("Plan(") else plan


def plan_labels(measured: Sequence[NetworkRecord]) -> dict[str, str]:
    """Return a label of each plan. Plan files of one sharding are numbered in their order."""
    names = {plan: plan_name(plan) for plan in (str(r.setup["plan"]) for r in measured)}
    shared, numbers, labels = Counter(names.values()), Counter[str](), {}
    for plan, name in names.items():
        numbers[name] += 1
        labels[plan] = f"{name} {numbers[name]}" if shared[name] > 1 else name
    return labels


def _quality_metric(measured: Sequence[NetworkRecord]) -> str:
    return next(name for name in METRICS if all(name in r.metrics for r in measured))


def networks_in_short(measured: Sequence[NetworkRecord]) -> str:
    """Return one table of a few configurations on 2 hosts by plan, without its last column, NE.

    Raises: ValueError: one of them was not measured.
    """
    lines: list[str] = []
    chosen: list[NetworkRecord] = []
    for plan, names in IN_SHORT.items():
        of_plan = [
            r
            for r in measured
            if r.num_hosts == 2 and r.configuration in names and r.setup["plan"] == plan
        ]
        missing = set(names) - {r.configuration for r in of_plan}
        if missing:
            raise ValueError(f"links.jsonl: no record of {plan}, {', '.join(sorted(missing))}")
        head, rule, *rows = network_table(of_plan, plan, RATES_IN_SHORT).splitlines()
        lines += [] if lines else [head.replace(", table_wise", ""), rule]
        lines += [row.replace("| `", f"| {plan.replace('_', '-')}, `", 1) for row in rows]
        chosen += of_plan
    table = "\n".join(line.rsplit("|", 2)[0] + "|" for line in lines)
    return f"{table}\n\n{network_origin(chosen)}\n"


def networks_not_in_links(measured: Sequence[NetworkRecord]) -> str:
    """Return the tables of those configurations that links.jsonl lacks, and of `stock`."""
    return networks([r for r in measured if r.configuration in NOT_IN_LINKS])


def networks_and_kinds(measured: Sequence[NetworkRecord]) -> str:
    """Return the tables of `networks`, and one of bytes by kind: of whole tables, at 100 Mbit/s."""
    chosen = [
        r for r in measured
        if r.traffic and r.setup["plan"] == "table_wise" and r.rate == "100mbit"
    ]  # fmt: skip
    lines = {"float32": counted_nbytes(chosen[0], "raw_nbytes")}
    lines |= {f"`{r.configuration}`": counted_nbytes(r) for r in chosen}
    rows = [
        [name, *(f"{n / 1e3:.1f}" for n in (*by_kind.values(), sum(by_kind.values())))]
        for name, by_kind in lines.items()
    ]
    head = ["sent by a rank, table_wise", *(f"{k} [KB]" for k in TRAFFIC_GROUPS), "all [KB]"]
    return f"{networks(measured)}\n{markdown(head, rows)}\n"


def choices(measured: Sequence[NetworkRecord]) -> str:
    """Return a line for each size of a batch, rate and plan: steps of `auto` and of its choices."""
    cells: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for r in measured:
        cell = str(r.setup["batch_size"]), RATES[r.rate], str(r.setup["plan"])
        cells[cell][r.configuration] = 1e3 * r.step_s.p50
    rows = []
    for cell, ms in cells.items():
        fastest = min(ms[name] for name in AUTO if name != "auto")
        ratios = [f"{ms['auto'] / base:.2f}" for base in (ms["stock"], fastest)]
        rows.append([*cell, *(f"{ms[name]:.0f} ms" for name in AUTO), *ratios])
    names = [f"`{name}`" for name in AUTO]
    head = ["samples a host", "link", "plan", *names, "`auto` / `stock`", "`auto` / fastest"]
    (dim,) = {r.setup["embedding_dim"] for r in measured}
    return "\n".join([markdown(head, rows), "", f"Dim {dim}; {_made_with(measured)}, no GPU.", ""])


def predictions(measured: Sequence[Record]) -> str:
    """Return what `trec_qcomm simulate` said: of runs on networks, then of clusters."""
    ratios: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    names, rates = ("table_wise", "row_wise", "two_level"), list(RATES)
    for r in measured:
        if isinstance(r, records.ValidationRecord) and not r.is_fitted:
            place = r.num_hosts, names.index(str(r.plan)), rates.index(r.rate)
            ratios[place].append(r.predicted_s / r.measured_s)
    runs = []
    for (num_hosts, name, rate), at_place in sorted(ratios.items()):
        within = [str(sum(abs(x - 1) <= most for x in at_place)) for most in (0.2, 0.05)]
        cells = [f"{num_hosts}, {names[name]}, {RATES[rates[rate]]}", str(len(at_place))]
        runs.append([*cells, f"{min(at_place):.2f} to {max(at_place):.2f}", *within])
    head = ["hosts, plan, link", "runs", "predicted / measured", "within 20 %", "within 5 %"]
    return "\n".join([markdown(head, runs), "", _clusters(measured), ""])


def _clusters(measured: Sequence[Record], gbit_s: float = 400.0) -> str:
    """Return a line a plan and number of GPUs: steps at a speed, and the speeds that pay."""
    scales = {
        (r.plan, r.num_gpus, r.configuration): r
        for r in measured
        if isinstance(r, records.ScaleRecord) and r.network_gbit_s == gbit_s
    }
    limits = {
        (r.plan, r.num_gpus, r.configuration): r
        for r in measured
        if isinstance(r, records.BreakEvenRecord)
    }
    rows = []
    for plan, num_gpus in dict.fromkeys(key[:2] for key in scales):
        at_place = [scales[plan, num_gpus, name] for name in SCALED]
        steps = [f"{1e3 * r.step_s:.4g}, {100 * r.communication_share:.0f} %" for r in at_place]
        speeds = [_limit(limits[plan, num_gpus, name]) for name in SCALED[1:]]
        rows.append([plan, str(num_gpus), *steps, *speeds])
    names = [f"`{name}`" for name in SCALED]
    head = ["plan", "GPUs", *names, *(f"{name}: limit" for name in names[1:])]
    return markdown(head, rows)


def _limit(record: records.BreakEvenRecord) -> str:
    speed = record.network_gbit_s
    return record.pays if speed is None else f"{speed:.0f}" if speed <= 1e4 else ">10000"


def plans(measured: Sequence[NetworkRecord], base: str = "table_wise") -> str:
    """Return a line for each configuration and plan, of plans that were trained in turn.

    Times are those of the slowest host, in brackets over those of the plan `base` at that rate.
    Raises: ValueError: records of several numbers of hosts.
    """
    num_hosts = sorted({record.num_hosts for record in measured})
    if len(num_hosts) > 1:
        raise ValueError(f"records of {num_hosts} hosts: a table of plans has one number of hosts")

    def label(record: NetworkRecord) -> str:
        plan = plan_name(str(record.setup["plan"]))
        return f"{plan}, again" if plan == base and record.setup["plan"] != base else plan

    rates = _rates_of(measured)
    by_place = {(r.configuration, label(r), r.rate): r for r in measured}
    rows = []
    for name, plan in dict.fromkeys((r.configuration, label(r)) for r in measured):
        cells = []
        for rate in rates:
            step_s, base_s = (by_place[name, p, rate].step_s.p50 for p in (plan, base))
            cells.append(f"{1e3 * step_s:.0f} ms ({step_s / base_s:.2f})")
        sent = f"{sent_nbytes(by_place[name, plan, rates[0]]) / 1e6:.2f} MB"
        rows.append([f"`{name}`", plan, sent, *cells])
    steps = [f"{RATES[rate]}: step" for rate in rates]
    table = markdown([f"{num_hosts[0]} hosts", "plan", "sent a step", *steps], rows)
    return "\n".join([table, "", network_origin(measured), ""])


def faults(measured: Sequence[records.BenchRecord]) -> str:
    """Return a column for each training under faults."""
    columns = []
    for r in measured:
        counts = [f"{r.figures[name]:,}" for name in FAULTS]
        growth = 100 * float(r.figures["memory_growth"])
        ended = f"{float(r.figures['slowest_end_after_kill_s']):.0f} s"
        columns.append([*counts, ended, f"{r.figures['memory_mib']} MiB, {growth:+.2f} %"])
    words = [name.replace("_", " ") for name in FAULTS]
    words += ["end of the other ranks after a kill", "memory of a process"]
    head = ["", *(f"`{r.configuration}`" for r in measured)]
    table = markdown(head, zip(words, *columns, strict=True))
    return f"{table}\n\n4 hosts, 20 Mbit/s; {_made_with(measured)}.\n"


def timeline(measured: Sequence[records.BenchRecord]) -> str:
    """Return the milliseconds of each part of one step, a column for each configuration."""
    names = list(dict.fromkeys(r.configuration for r in measured))
    sums: dict[str, dict[str, str]] = defaultdict(dict)
    for r in measured:
        words = f"{r.case['lane']}: {r.case['part']}".removeprefix("computes: ")
        sums[words][r.configuration] = f"{sum(end - begin for begin, end in spans_of(r)):.0f}"
    rows = [[words, *(ms.get(name, "") for name in names)] for words, ms in sums.items()]
    table = markdown(["ms of rank 0", *(f"`{name}`" for name in names)], rows)
    rate = str(measured[0].case["rate"]).replace("mbit", " Mbit/s")
    setting = f"2 hosts, {rate}, the median of 9 steps on a busy machine"
    return f"{table}\n\n{setting}; {_made_with(measured)}.\n"


def spans_of(record: records.BenchRecord) -> list[tuple[float, float]]:
    """Return begin and end of each span of a part of a step, in milliseconds."""
    spans = [span.split("-") for span in str(record.figures["spans_ms"]).split()]
    return [(float(begin), float(end)) for begin, end in spans]


def codecs(measured: Sequence[CodecRecord], dims: Sequence[int]) -> str:
    """Return a table of each dim, and what they were measured with."""
    tables = [codec_table([r for r in measured if r.dim == dim]) for dim in dims]
    return "\n\n".join([*tables, _codec_origin([r for r in measured if r.dim in dims])]) + "\n"


def codec_table(measured: Sequence[CodecRecord]) -> str:
    """Return a line a codec, rows and gradients side by side. Records are of one dim."""
    kinds = list(dict.fromkeys(r.values for r in measured))
    threads = sorted({r.threads for r in measured})
    by_place = {(r.configuration, r.values, r.threads): r for r in measured}
    ratio, *others = CODEC_COLUMNS
    heads = [head for kind in kinds for head in (f"{kind}: {ratio}", *others)]
    rows = []
    ordered = sorted(measured, key=lambda r: not r.is_ours)
    for name, is_ours in dict.fromkeys((r.configuration, r.is_ours) for r in ordered):
        cells = []
        for kind in kinds:
            by_threads = [by_place[name, kind, t] for t in threads if (name, kind, t) in by_place]
            cells += _codec_cells(by_threads) if by_threads else [""] * len(CODEC_COLUMNS)
        rows.append([f"`{name}`" if is_ours else name, *cells])
    return markdown([f"dim {measured[0].dim}", *heads], rows)


def _codec_cells(by_threads: Sequence[CodecRecord]) -> list[str]:
    """Return the cells of one codec and kind. Ratio and error are those of the last record."""
    last = by_threads[-1]

    def medians(rates: Iterable[Percentiles]) -> str:
        return ", ".join(_rate(rate.p50) for rate in rates)

    return [
        f"{last.ratio:.2f}" if last.ratio < 100 else f"{last.ratio:.0f}",
        medians(r.encode_gb_s for r in by_threads),
        medians(r.decode_gb_s for r in by_threads),
        ", ".join(_rate(r.break_even_gb_s or 0.0) for r in by_threads),
        _error(last),
    ]


def _rate(gb_s: float) -> str:
    return "none" if gb_s <= 0 else f"{gb_s:.2f}" if gb_s >= 0.1 else f"{gb_s:.1g}"


def _error(record: CodecRecord) -> str:
    """Return the error over the bound, where there is one; else the absolute error."""
    if record.error_over_bound is not None and record.bound is not None:
        return f"{record.error_over_bound:.3f} of {100 * record.bound:g} %"
    return f"{record.max_error:.1e}" if record.max_error else "0"


def _codec_origin(measured: Sequence[CodecRecord]) -> str:
    """Return what the numbers mean; data, commits, versions, machine."""
    threads = ", ".join(str(t) for t in sorted({r.threads for r in measured}))
    sizes = ", ".join(
        f"{kind} {(nbytes or 0) / 1e6:.2f} MB"
        for kind, nbytes in dict.fromkeys((r.values, r.raw_nbytes) for r in measured)
    )
    return (
        f"GB/s of float32 (p50), number of threads: {threads}; break-even: of a link, `none` where "
        "nothing is saved; error: of the bound, a fraction of each table's range, or absolute. "
        "Times are of a machine under load, and codecs take turns for one number of threads after "
        "the other: compare down a column. "
        f"{', '.join(dict.fromkeys(str(r.setup.get('data')) for r in measured))} ({sizes}), "
        f"seed {measured[0].seed}; {_made_with(measured)}."
    )
