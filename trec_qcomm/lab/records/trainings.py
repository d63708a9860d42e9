"""Records of trainings: a whole one, its progress, one on a network, one seed of a study."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch.distributed as dist

from trec_qcomm.core.fields import Range, check_fields
from trec_qcomm.core.stats import Stats
from trec_qcomm.lab.records.record import (
    Environment,
    Percentiles,
    Record,
    Scalar,
    TrafficByKind,
    TrafficBytes,
)

HEADERS_NBYTES = 66  # Ethernet, IP and TCP of a packet, which the kernel counts and we do not

Metrics = Mapping[str, float]  # by name: ne (normalized entropy), logloss, auc, ...


@dataclass(frozen=True, kw_only=True)
class TableTraffic:
    """Traffic of one embedding table in a step, the mean over ranks.

    Args:
        forward, backward: bytes of its rows and of their gradients, without frame headers.
        num_bags: bags of ids before equal ones are merged; 0 where none are.
        num_sent: bags that were sent.
        tolerances: error bound or threshold at the end of the training, one for each rank that
            sent rows of this table and has one.
    """

    forward: TrafficBytes
    backward: TrafficBytes
    num_bags: float = 0.0
    num_sent: float = 0.0
    tolerances: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrainingRecord(Record, kind="training"):
    """A training from its first step to its test. Only `configuration` and `steps` are needed.

    Args:
        steps: number of training steps.
        num_ranks: number of ranks.
        losses: training loss of each step, the mean over ranks.
        metrics: metrics of the test, with the codecs on; plain TorchRec has no codecs.
        metrics_exact: metrics of the test with the codecs off, in `qcomm.bypass()`.
        progressive_logloss: mean of the losses, each taken on samples not trained on before.
        step_s: seconds of a step.
        traffic: bytes that a rank sends in a step, by kind of traffic.
        tables: traffic of each table.
        shardings: number of tables of each sharding type.
        run: name of this training, which its progress records have, too.
    """

    steps: int
    num_ranks: int = 1
    losses: tuple[float, ...] = ()
    metrics: Metrics = field(default_factory=dict)
    metrics_exact: Metrics = field(default_factory=dict)
    progressive_logloss: float | None = None
    step_s: Percentiles | None = None
    traffic: TrafficByKind | None = None
    tables: Mapping[str, TableTraffic] | None = None
    shardings: Mapping[str, int] | None = None
    run: str | None = None

    @classmethod
    def from_qcomm(
        cls,
        qcomm: Any,
        *,
        name: str,
        losses: Sequence[float] = (),
        metrics: Metrics | None = None,
        setup: Mapping[str, Scalar] | None = None,
        seed: int = 0,
        **fields: Any,
    ) -> TrainingRecord:
        """Return the record of a training that has just ended, as this rank saw it.

            record = TrainingRecord.from_qcomm(
                qcomm, name="int4", losses=losses, metrics={"ne": 0.81}
            )
            trec_qcomm.lab.records.append("runs/mine.jsonl", record)

        Config and traffic are read from `qcomm`; the environment is this process's.

        Args:
            qcomm: the training's QComm; None for plain TorchRec.
            name: name of the configuration; two trainings of one setup are compared by it.
            losses: training loss of each step.
            metrics: metrics of the test; figures of quality read "ne".
            setup: all that must be equal for two trainings to be compared, and only that.
            seed: seed of the training.
            fields: any other field of this class.
        """
        stats = None if qcomm is None else qcomm.stats()
        steps = fields.pop("steps", len(losses))
        if stats is not None and "traffic" not in fields:
            fields["traffic"] = traffic_of(stats, stats.num_steps or steps)
        fields.setdefault("config", None if qcomm is None else qcomm.to_yaml())
        fields.setdefault("choice", choice_of(qcomm))
        fields.setdefault("num_ranks", _num_ranks())
        fields.setdefault("environment", Environment.current())
        fields.setdefault("time", time.time())
        return cls(
            configuration=name, steps=steps, losses=tuple(map(float, losses)),
            metrics={key: float(value) for key, value in (metrics or {}).items()},
            setup=dict(setup or {}), seed=seed, **fields,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ProgressRecord(Record, kind="progress"):
    """A training that is under way, or that was interrupted.

    Args:
        step: number of steps so far.
        run: name of the training.
        loss: mean loss of the steps since the record before.
        step_s: seconds of these steps.
        traffic: bytes that this rank has sent since the training began, by kind of traffic.
        is_interrupted: whether the training was told to stop after this step.
    """

    step: int
    run: str | None = None
    loss: float | None = None
    step_s: Percentiles | None = None
    traffic: TrafficByKind | None = None
    is_interrupted: bool = False


@dataclass(frozen=True, kw_only=True)
class NetworkRecord(Record, kind="network"):
    """A training between hosts whose links have a given speed.

    Args:
        num_hosts: number of hosts.
        ranks_per_host: number of ranks of each, which do not reach one another by its link.
        rate: rate of each host's link as tc writes it, such as "100mbit", or "none".
        delay: delay of each link as tc writes it; None without.
        num_steps: number of timed steps.
        step_s: seconds of a step of the slowest host.
        sent_nbytes, sent_packets: what the kernel counted in a step, one number a host.
        traffic: what the collectives were given in a step, by kind of traffic, one for each rank;
            None for plain TorchRec.
        breakdown_s: seconds of each part of a step, the mean over hosts.
        metrics: metrics of the test, with the codecs on.
        losses: training loss of each step.
        progressive_logloss: mean of the losses, each taken on samples not trained on before.
    """

    num_hosts: int
    ranks_per_host: int = 1
    rate: str
    delay: str | None = None
    num_steps: int
    step_s: Percentiles
    sent_nbytes: tuple[float, ...]
    sent_packets: tuple[float, ...]
    traffic: tuple[TrafficByKind, ...] | None = None
    breakdown_s: Mapping[str, float] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    progressive_logloss: float | None = None

    @property
    def payload_nbytes(self) -> tuple[float, ...]:
        """What the kernel counted in a step without the headers of packets, one number a host."""
        counted = zip(self.sent_nbytes, self.sent_packets, strict=True)
        return tuple(nbytes - HEADERS_NBYTES * packets for nbytes, packets in counted)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much worse than the baseline a metric may be, for a configuration to pass a study.

    Args:
        mean: greatest mean change over the seeds; None for no such limit.
        upper: greatest upper limit of the change, one-sided with 95 %.
        seeds: least number of seeds that a study has to be planned with.
        higher_is_better: whether an increase of the metric is an improvement, as of AUC.
        is_relative: whether changes are in percent of the baseline's value, or plain differences.
    Raises: ValueError: a limit that is not finite, an upper limit that is not positive or is below
        that of the mean, or fewer than 5 seeds.
    """

    mean: Annotated[float, Range()] | None
    upper: Annotated[float, Range(0, is_open=True)]
    seeds: Annotated[int, Range(5)]
    higher_is_better: bool = False
    is_relative: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.mean is not None and self.mean > self.upper:
            raise ValueError(f"mean {self.mean}: expected a number up to upper {self.upper}")


LimitsByMetric = Mapping[str, Limits | None]  # None: the metric is shown, and has no limits


@dataclass(frozen=True, kw_only=True)
class SeedTraining:
    """Result of one training of a study.

    Args:
        metrics, metrics_exact: metrics with the codecs on, and off; empty where not measured.
        steps: number of training steps; None where it is not known.
        progressive_logloss: mean of the losses, each taken on samples not trained on before; None
            where it is one of the metrics, or was not measured.
    """

    metrics: Metrics
    metrics_exact: Metrics = field(default_factory=dict)
    steps: int | None = None
    progressive_logloss: float | None = None

    @property
    def all_metrics(self) -> Metrics:
        """All metrics with the codecs on, by name."""
        if self.progressive_logloss is None:
            return self.metrics
        return {**self.metrics, "progressive_logloss": self.progressive_logloss}


@dataclass(frozen=True, kw_only=True)
class SeedEvaluation:
    """Metrics of a model that was trained in float32, with the codecs switched on, and off."""

    metrics: Metrics
    metrics_exact: Metrics


@dataclass(frozen=True, kw_only=True)
class StudyRecord(Record, kind="study"):
    """One seed of one configuration in a study of quality.

    Args:
        num_ranks: number of ranks, emulated or real.
        training: a training with this configuration; None where there was none.
        evaluation: the float32 model of this seed, evaluated with this configuration.
        seconds: time that this seed took.
        limits, evaluation_limits: limits of the study, of trainings and of evaluations; both empty
            in a record of the Criteo example that is older than these fields.
        looks: numbers of seeds after which the study may stop; empty where it runs all seeds.
    """

    num_ranks: int
    training: SeedTraining | None = None
    evaluation: SeedEvaluation | None = None
    seconds: float | None = None
    limits: LimitsByMetric = field(default_factory=dict)
    evaluation_limits: LimitsByMetric = field(default_factory=dict)
    looks: tuple[int, ...] = ()


def traffic_of(stats: Stats, num_steps: int) -> dict[str, TrafficBytes]:
    """Return the bytes of a step by kind of traffic.

    Args:
        stats: what `QComm.stats()` returned.
        num_steps: number of steps that it counted; 0 counts as 1.
    """
    names = ("raw_nbytes", "distinct_nbytes", "wire_nbytes")
    return {
        kind: TrafficBytes(**{name: getattr(counted, name) / max(num_steps, 1) for name in names})
        for kind, counted in stats.by_kind().items()
    }


def choice_of(qcomm: Any) -> str | None:
    """Return what `auto` chose, in words; None without `auto`. Args: qcomm: None for stock."""
    auto = None if qcomm is None else qcomm.session.extensions.get("auto")
    return None if auto is None else str(auto.choice)


def _num_ranks() -> int:
    """Return the world size of torch.distributed; 1 where it is not in use."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
