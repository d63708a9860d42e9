"""Records of every kind, made by hand: small numbers that can be checked in the head."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.lab.debug.made_runs import made_run
from trec_qcomm.lab.records import (
    TRAFFIC_KINDS,
    Environment,
    GuardProbeRecord,
    GuardRecord,
    NetworkRecord,
    Origin,
    Percentiles,
    Record,
    SearchRecord,
    SeedTraining,
    StudyRecord,
    TrafficByKind,
    TrafficBytes,
    TrainingRecord,
    append,
)

INT4 = "embedding:\n  - tables: ['*']\n    forward: {codec: rowwise, bits: 4}\n"
INT4 += "    backward: {codec: rowwise, bits: 4}\n"
SETUP = {"batch_size": 64, "embedding_dim": 8, "data": "rows.tsv"}
ENVIRONMENT = Environment(
    commit="abc1234", versions={"torch": "2.13.0"}, hardware={"cpu": "x86_64"}
)


def network(
    configuration: str = "stock",
    rate: str = "1gbit",
    p50_s: float = 1.0,
    *,
    sent: float = 1e6,
    **changes: Any,
) -> NetworkRecord:
    """A training that sends `sent` bytes a step; whiskers are 1 % to either side."""
    record = NetworkRecord(
        configuration=configuration,
        setup=SETUP,
        environment=ENVIRONMENT,
        num_hosts=2,
        rate=rate,
        num_steps=3,
        step_s=Percentiles(p20=0.99 * p50_s, p50=p50_s, p80=1.01 * p50_s),
        sent_nbytes=(sent, sent),
        sent_packets=(10, 10),
        metrics={"ne": 0.9},
        losses=(0.7, 0.6, 0.5),
    )
    return dataclasses.replace(record, **changes)


def traffic(**by_kind: tuple[float | None, float | None, float]) -> TrafficByKind:
    """Raw, distinct and wire bytes by kind; 0 of a kind that is not named."""
    counts = {kind: by_kind.get(kind, (0.0, 0.0, 0.0)) for kind in TRAFFIC_KINDS}
    return {
        kind: TrafficBytes(raw_nbytes=raw, distinct_nbytes=distinct, wire_nbytes=wire)
        for kind, (raw, distinct, wire) in counts.items()
    }


def both_hosts(
    **by_kind: tuple[float | None, float | None, float],
) -> tuple[TrafficByKind, TrafficByKind]:
    """Traffic that is equal on both hosts."""
    return traffic(**by_kind), traffic(**by_kind)


def training(configuration: str = "fp32", ne: float = 0.9, **changes: Any) -> TrainingRecord:
    """A training of which a quarter of all bags was sent."""
    record = TrainingRecord(
        configuration=configuration,
        config=INT4,
        setup=SETUP,
        environment=ENVIRONMENT,
        steps=3,
        num_ranks=2,
        losses=(0.7, 0.6, 0.5),
        metrics={"ne": ne},
        traffic=traffic(embedding_forward=(8e6, 2e6, 5e5)),
        run="run",
    )
    return dataclasses.replace(record, **changes)


def study(
    configuration: str, seed: int, ne: float, config: str | None = None, **changes: Any
) -> StudyRecord:
    """A seed of a study. Args: config: YAML text; default one of its own for each name."""
    metrics = {"ne": ne, "logloss": ne, "auc": 0.75}
    record = StudyRecord(
        configuration=configuration,
        config=f"# {configuration}" if config is None else config,
        seed=seed,
        environment=ENVIRONMENT,
        num_ranks=4,
        training=SeedTraining(
            steps=3, progressive_logloss=ne, metrics=metrics, metrics_exact=metrics
        ),
    )
    return dataclasses.replace(record, **changes)


def everything() -> list[Record]:
    """Enough records for every figure."""
    counts = both_hosts(
        embedding_forward=(6e5, 3e5, 3e4), embedding_backward=(6e5, 3e5, 3e4),
        dense=(3e5, 3e5, 3e5), input=(1e5, 1e5, 1e5),
    )  # fmt: skip
    records: list[Record] = [
        network(name, rate, p50_s, sent=sent, traffic=by_host, config=config)
        for name, sent, by_host, config, times in (
            ("stock", 1e6, None, None, (8.0, 2.0)),
            ("int4", 4.6e5, counts, INT4, (4.0, 2.4)),
        )
        for rate, p50_s in zip(("100mbit", "none"), times, strict=True)
    ]
    for seed in range(5):
        records += [study("fp32", seed, 1.0), study("int4", seed, 1.01 + seed / 1e4, INT4)]
    records.append(training())
    return [*records, *debugged(), *guarded(), *searched()]


def debugged() -> list[Record]:
    """Records of the numeric debugger: a table on two ranks, four steps, shadows of its rows."""
    run = [r for r in made_run(steps=range(0, 20, 5)).records if r.name == "t_0"]
    shadows = [
        dataclasses.replace(
            record, is_shadow=True, codec=f"Rowwise(bits={bits})", bits=bits + 2.0,
            snr_db=6.0 * bits, environment=ENVIRONMENT,
        )
        for record in run
        for bits in (2, 4, 8)
        if record.direction == "forward"
    ]  # fmt: skip
    return [*run, *shadows]


def searched() -> list[Record]:
    """Plans of a search, one of them verified, beside a configuration that was not searched."""
    shown = {"loss mean": 0.011, "loss low": 0.002, "loss high": 0.02, "num_seeds": 20}
    plans: list[tuple[str, float, float, dict[str, float]]] = [
        ("half", 0.01, 2e4, {}), ("plan", 0.02, 1e4, shown), ("best", 0.0, 3e4, {})
    ]  # fmt: skip
    return [
        SearchRecord(
            configuration=name, stage="plan", num_ranks=4, setup={"data": "rows"},
            environment=ENVIRONMENT,
            figures={
                "budget": budget, "nbytes": nbytes, "float32_nbytes": 1e5, "error": 0.001,
                "expected": budget / 2, **verified,
            },
        )
        for name, budget, nbytes, verified in plans
    ]  # fmt: skip


def guarded(run: str | None = "guarded", start: int = 0) -> list[Record]:
    """Records of a guard: t_1 is moved up at probe 6, and back at probe 14 of 16."""
    rungs = {"t_0": 1, "t_1": 1}
    records: list[Record] = []
    common: dict[str, Any] = {"configuration": "int4", "run": run, "environment": ENVIRONMENT}
    for probe in range(start, 16):
        step = 200 * probe
        change = 0.3 if probe in (5, 6) else 0.004 + 0.001 * (probe % 3)
        rungs["t_1"] = 2 if 7 <= probe <= 14 else 1
        records.append(
            GuardProbeRecord(
                step=step, probe=probe, limit_ne=0.02, change=change, mean=change,
                low=change - 0.003, high=change + 0.003, forward=dict(rungs),
                backward={"t_0": 0, "t_1": 0}, wire_nbytes=1e6 + 2e5 * (rungs["t_1"] == 2),
                **common,
            )
        )  # fmt: skip
        codecs = ("Rowwise(bits=4)", "Rowwise(bits=8)")
        for kind, reason, at in (("trip", "loss", 6), ("raise", "loss", 6), ("lower", "calm", 14)):
            if probe == at:
                moved = {} if kind == "trip" else {"table": "t_1", "direction": "forward"}
                before, after = codecs if kind == "raise" else codecs[::-1]
                names = {"codec_before": before, "codec_after": after} if moved else {}
                records.append(
                    GuardRecord(
                        step=step, probe=probe, event=kind, reason=reason, message="", change=0.3,
                        **moved, **names, **common,
                    )
                )  # fmt: skip
    return records


def placed(*records: Record) -> list[Record]:
    """The records as if they were read from one file."""
    return [
        dataclasses.replace(record, origin=Origin("sample.jsonl", n))
        for n, record in enumerate(records, start=1)
    ]


def write(path: Path, records: Sequence[Record]) -> Path:
    """Write a file anew."""
    path.unlink(missing_ok=True)
    path.touch()
    append(path, *records)
    return path
