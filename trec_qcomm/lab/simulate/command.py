"""Predict a training step on 8 to 4,096 GPUs, with and without compression, and where it pays.

examples:
  python -m trec_qcomm simulate --records examples/bench/results/links*.jsonl
  python -m trec_qcomm simulate --records net.jsonl --gpus 16,128 --network-gbit-s 200 --plans tw
  python -m trec_qcomm simulate --records net.jsonl --encode-gb-s 150 --out s.jsonl
  python -m trec_qcomm simulate --records net.jsonl --sizes sizes.jsonl --gpus 64   your own tables

Three parts, in this order. First a step between emulated hosts on a slow link is predicted from one
without a limit, and set against what was measured (validation.py says how, and what is fitted on
which runs). Then another model, an alpha-beta one of clusters of two link levels that nobody here
has, with the ratios of the records (step.py, plans.py, links.py hold the formulas). Last, for every
configuration the speed of the links between nodes above which it is no faster than the first of
--configs.

The first part tests of the second one the bytes that are sent, and the share of compute beside
which dense gradients travel (overlap: fitted there, with gloo on a few CPU cores). It does not test
plans, two link levels, latencies, or times of codecs, lookups and dense layers. What no GPU has
told us is an option and is called assumed in all output; examples/bench/gpu.py measures a GPU's
codecs.

The ratios are those of the records' model and of its dim and batch, the share of distinct bags that
of its features of one id each; where bags repeat less --distinct-share says so, and with 1 what
remains is the codecs' own part. With --sizes the tables are those of your training, and ratios
follow plan and number of GPUs; predicted bytes are set against counted ones first.

--out gets records of trec_qcomm.lab.records: of kind validation, scale and break_even.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from trec_qcomm.config import Link
from trec_qcomm.ext.planner.cost_model import Throughput
from trec_qcomm.lab.records import (
    BreakEvenRecord,
    NetworkRecord,
    Record,
    Scalar,
    ScaleRecord,
    TableSizesRecord,
    append,
    read,
)
from trec_qcomm.lab.simulate import report
from trec_qcomm.lab.simulate.counted import bytes_records, counted_text, predict_counted
from trec_qcomm.lab.simulate.links import Cluster
from trec_qcomm.lab.simulate.measured import (
    MeasuredStep,
    dense_values,
    find_configuration,
    load_steps,
)
from trec_qcomm.lab.simulate.options import (
    BATCH_SIZE,
    MLPERF_DENSE_VALUES,
    MLPERF_DIM,
    MLPERF_IDS,
    assumptions,
    build_parser,
    check,
)
from trec_qcomm.lab.simulate.own_tables import OwnTables, own_tables, read_sizes
from trec_qcomm.lab.simulate.plans import Model
from trec_qcomm.lab.simulate.report import GBIT_S
from trec_qcomm.lab.simulate.step import Configuration, Device, Replicas, Step, break_even, simulate
from trec_qcomm.lab.simulate.validation import validate


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All of a case but configuration, plan, number of GPUs and speed of the network, checked.

    Args: assumed: options that were not measured.
    """

    model: Model
    device: Device
    intra: Link
    latency_s: float
    gpus_per_node: int
    configurations: tuple[Configuration, ...]
    replicas: Replicas = field(default_factory=Replicas)
    own_tables: Mapping[str, OwnTables] = field(default_factory=dict)
    assumed: Mapping[str, Scalar | None] = field(default_factory=dict)

    def at(self, configuration: Configuration, plan: str, num_gpus: int) -> Configuration:
        """Return the configuration with the ratios of this plan and number of GPUs."""
        tables = self.own_tables.get(configuration.name)
        if tables is None:
            return configuration
        num_gpus //= self.replicas.num_groups
        return tables.at(configuration, plan, self.cluster(num_gpus, 1.0))

    def cluster(self, num_gpus: int, gb_s: float) -> Cluster:
        """Return a cluster. Args: gb_s: GB/s of a GPU's link between nodes."""
        inter = Link(latency_s=self.latency_s, gb_s=gb_s)
        return Cluster(
            num_gpus=num_gpus, gpus_per_node=self.gpus_per_node, intra=self.intra, inter=inter
        )

    def step(self, configuration: Configuration, plan: str, num_gpus: int, gb_s: float) -> Step:
        """Return one step. Args: gb_s: GB/s of a GPU's link between nodes."""
        cluster = self.cluster(num_gpus, gb_s)
        return simulate(configuration, plan, self.model, cluster, self.device, self.replicas)

    def case(
        self, configuration: Configuration, plan: str, num_gpus: int, gb_s: float
    ) -> ScaleRecord:
        """Return the record of one step. Args: gb_s: GB/s of a GPU's link between nodes."""
        step = self.step(self.at(configuration, plan, num_gpus), plan, num_gpus, gb_s)
        return ScaleRecord(
            configuration=configuration.name, num_gpus=num_gpus, plan=plan,
            network_gbit_s=gb_s * GBIT_S, step_s=step.step_s, parts_s=step.parts_s,
            communication_share=step.communication_share, assumed=self.assumed,
            extrapolated=report.extrapolated(step),
        )  # fmt: skip

    def limit(self, configuration: Configuration, plan: str, num_gpus: int) -> BreakEvenRecord:
        """Return the link speed from which a configuration does not pay."""
        base = self.at(self.configurations[0], plan, num_gpus)
        here = self.at(configuration, plan, num_gpus)

        def saved_s(gb_s: float) -> float:
            base_s = self.step(base, plan, num_gpus, gb_s).step_s
            return base_s - self.step(here, plan, num_gpus, gb_s).step_s

        even = break_even(saved_s)
        return BreakEvenRecord(
            configuration=configuration.name, against=base.name, num_gpus=num_gpus, plan=plan,
            pays=even.pays, network_gbit_s=None if even.gb_s is None else even.gb_s * GBIT_S,
            assumed=self.assumed,
        )  # fmt: skip


def run(arguments: argparse.Namespace) -> str:
    """Validate, extrapolate, print and write; return the last line.

    Raises: ValueError naming the option, or the file and its field.
    """
    check(arguments)
    steps, left_out = load_steps(*arguments.records)
    for reason in left_out:
        print(f"left out: {reason}", file=sys.stderr)
    configurations = tuple(
        _configuration(name, steps, arguments.distinct_share) for name in arguments.configs
    )
    fit, predictions = validate(steps, arguments.fit_configs)
    if arguments.overlap is None:
        arguments.overlap = fit.overlap
    sizes = [] if arguments.sizes is None else read_sizes(arguments.sizes)
    if arguments.dense_values is None:
        arguments.dense_values = dense_values(steps) if sizes else MLPERF_DENSE_VALUES
    setting = read_setting(arguments, configurations, sizes)
    counted = predict_counted(_networks(arguments.records), sizes)
    clusters = [(plan, num) for plan in arguments.plans for num in arguments.gpus]
    cases = [
        setting.case(configuration, plan, num, speed / GBIT_S)
        for speed in arguments.network_gbit_s
        for plan, num in clusters
        for configuration in configurations
    ]
    limits = [
        setting.limit(configuration, plan, num)
        for plan, num in clusters for configuration in configurations[1:]
    ]  # fmt: skip
    base = configurations[0].name
    assumed = ", ".join(f"{name} {value}" for name, value in setting.assumed.items())
    texts = [
        *([counted_text(counted)] if counted else []),
        report.validation_text(fit, predictions),
        report.configurations_text(configurations),
        report.scale_text(cases),
        *([report.parts_text(cases)] if arguments.parts else []),
        report.limits_text(limits, base),
        report.choice_text(cases, base),
        f"{report.ASSUMED}: {assumed}",
    ]
    print("\n\n".join(texts))
    if arguments.out is not None:
        _write(
            arguments.out,
            *bytes_records(counted),
            *report.validation_records(fit, predictions),
            *cases,
            *limits,
        )
    return report.last_line(predictions, cases, base)


def _networks(paths: Sequence[Path]) -> list[NetworkRecord]:
    return [r for path in paths for r in read(path) if isinstance(r, NetworkRecord)]


def _write(out: Path, *records: Record) -> None:
    try:
        out.unlink(missing_ok=True)
        append(out, *records)
    except OSError as error:
        raise ValueError(f"out {out}: cannot be written: {error.strerror}") from error


def _configuration(
    name: str, steps: Sequence[MeasuredStep], distinct_share: float | None
) -> Configuration:
    configuration = find_configuration(name, steps)
    if distinct_share is None or configuration.distinct_share == 1:
        return configuration
    return replace(configuration, distinct_share=distinct_share)


def read_setting(
    arguments: argparse.Namespace,
    configurations: tuple[Configuration, ...],
    sizes: Sequence[TableSizesRecord] = (),
) -> Setting:
    """Return what the options say of model and cluster. Raises ValueError naming the option."""
    tables = {c.name: own_tables(c.name, sizes) for c in configurations}
    return Setting(
        model=_model(arguments, sizes),
        device=Device(
            tflop_s=arguments.tflop_s,
            memory_gb_s=arguments.memory_gb_s,
            throughput=Throughput(
                encode_gb_s=arguments.encode_gb_s, decode_gb_s=arguments.decode_gb_s
            ),
            overlap=arguments.overlap,
            pipeline=arguments.pipeline,
            compute_s=None if arguments.compute_ms is None else arguments.compute_ms / 1e3,
        ),
        intra=Link(latency_s=arguments.nvlink_latency_us / 1e6, gb_s=arguments.nvlink_gb_s),
        latency_s=arguments.network_latency_us / 1e6,
        gpus_per_node=arguments.gpus_per_node,
        configurations=configurations,
        replicas=Replicas(
            num_groups=arguments.replica_groups,
            every=arguments.sync_every,
            table_rows=arguments.table_rows or _table_rows(sizes),
            touched_share=arguments.touched_share or 1.0,
        ),
        own_tables={name: table for name, table in tables.items() if table is not None},
        assumed=assumptions(arguments),
    )


def _model(arguments: argparse.Namespace, sizes: Sequence[TableSizesRecord]) -> Model:
    """Return the model of the options, or that of the sizes. Raises ValueError: of both."""
    ids: tuple[float, ...] = MLPERF_IDS
    dim, batch_size = MLPERF_DIM, BATCH_SIZE
    if sizes:
        for name in ("ids", "dim", "batch_size"):
            if getattr(arguments, name) is not None:
                raise ValueError(f"{name.replace('_', '-')}: not with sizes, which have their own")
        tables = sizes[-1].tables.values()
        ids = (1.0,) * len(tables)
        dim = round(fmean(table.dim for table in tables))
        batch_size = round(fmean(table.num_bags for table in tables))
    return Model(
        num_ids=tuple(ids if arguments.ids is None else arguments.ids),
        dim=dim if arguments.dim is None else arguments.dim,
        batch_size=batch_size if arguments.batch_size is None else arguments.batch_size,
        dense_values=arguments.dense_values,
    )


def _table_rows(sizes: Sequence[TableSizesRecord]) -> int:
    return sum(t.num_rows or 0 for t in sizes[-1].tables.values()) if sizes else 0


def main(words: Sequence[str] | None = None) -> int:
    """Run the command. A mistake in its words ends with status 2."""
    parser = build_parser(__doc__)
    arguments = parser.parse_args(words)
    try:
        print(run(arguments))
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
