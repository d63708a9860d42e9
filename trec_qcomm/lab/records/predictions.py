"""Records of predicted steps: beside measured ones, on clusters, and links that break even."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trec_qcomm.lab.records.record import Record, Scalar

Assumptions = Mapping[str, Scalar | None]  # by option; None: as it was measured


@dataclass(frozen=True, kw_only=True)
class ValidationRecord(Record, kind="validation"):
    """A predicted step beside the measured one.

    Args:
        num_hosts, ranks_per_host, rate: the network that was measured, see NetworkRecord.
        predicted_s, measured_s: seconds of a step.
        is_fitted: whether the model was fitted to this measurement, too.
        fit: the fitted numbers.
        plan: sharding of all tables; None in older records, which are table-wise.
    """

    num_hosts: int
    ranks_per_host: int = 1
    rate: str
    predicted_s: float
    measured_s: float
    is_fitted: bool
    fit: Mapping[str, float] = field(default_factory=dict)
    plan: str | None = None


@dataclass(frozen=True, kw_only=True)
class BytesRecord(Record, kind="bytes"):
    """Predicted bytes of a step beside those that were counted, the mean over hosts.

    Args:
        num_hosts, ranks_per_host, plan: hosts, ranks of each, and sharding of all tables.
        predicted_nbytes, counted_nbytes: bytes by group of traffic, see TRAFFIC_GROUPS.
        kernel_nbytes: what the kernel counted of all of them, without headers of packets.
        num_ranks: ranks of the training that the sizes of segments are from.
    """

    num_hosts: int
    ranks_per_host: int = 1
    plan: str
    predicted_nbytes: Mapping[str, float]
    counted_nbytes: Mapping[str, float]
    kernel_nbytes: float
    num_ranks: int


@dataclass(frozen=True, kw_only=True)
class ScaleRecord(Record, kind="scale"):
    """A predicted step on a cluster that nobody measured.

    Args:
        num_gpus, plan: size of the cluster, and sharding of all tables.
        network_gbit_s: Gbit/s of a GPU's link between nodes.
        step_s: seconds of a step.
        communication_share: share of the step that is communication.
        parts_s: seconds of each part.
        assumed: options that were not measured.
        extrapolated: what no run has tested; see trec_qcomm.lab.simulate.report.
    """

    num_gpus: int
    plan: str
    network_gbit_s: float
    step_s: float
    communication_share: float
    parts_s: Mapping[str, float] = field(default_factory=dict)
    assumed: Assumptions = field(default_factory=dict)
    extrapolated: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BreakEvenRecord(Record, kind="break_even"):
    """The link between nodes up to which a configuration is faster than another.

    Args:
        against: name of the other configuration.
        num_gpus, plan: size of the cluster, and sharding of all tables.
        pays: links on which it is faster: those below network_gbit_s, all ("always"), or none
            ("never").
        network_gbit_s: Gbit/s of a GPU's link; None unless `pays` is "below".
        assumed: options that were not measured.
    """

    against: str
    num_gpus: int
    plan: str
    pays: Literal["below", "always", "never"]
    network_gbit_s: float | None = None
    assumed: Assumptions = field(default_factory=dict)
