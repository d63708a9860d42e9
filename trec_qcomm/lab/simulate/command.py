"""Predict a training step on 8 to 4,096 GPUs, with and without compression, and where it pays.

examples:
  python -m trec_qcomm simulate --records examples/bench/results/links*.jsonl
  python -m trec_qcomm simulate --records net.jsonl --gpus 16,128 --network-gbit-s 200 --plans tw
  python -m trec_qcomm simulate --records net.jsonl --encode-gb-s 150 --out s.jsonl
  python -m trec_qcomm simulate --records net.jsonl --sizes sizes.jsonl --gpus 64   your own tables

The output has three parts.
1. A step between emulated hosts on a slow link, predicted from a step without a limit, beside the
   measured step. validation.py says how, and what is fitted on which runs.
2. An alpha-beta model of clusters with two link levels, with the ratios of the records. step.py and
   plans.py have the formulas. We have no such cluster.
3. For every configuration, the speed of the links between nodes above which it is no faster than
   the first of --configs.

Part 1 tests only two numbers of part 2: the bytes that are sent, and the share of compute beside
which dense gradients travel (overlap: fitted there, with gloo on a few CPU cores). It does not test
plans, two link levels, latencies, or times of codecs, lookups and dense layers. Numbers that no GPU
has told us are called assumed in all output. Most of them are options; examples/bench/gpu.py
measures a GPU's codecs.

The ratios are those of the records' model, with its dim and batch. The share of distinct bags is
that of its features, which have one id each. If your bags repeat less, use --distinct-share; with 1
only the codecs' own part remains. With --sizes the tables are those of your training, and ratios
follow plan and number of GPUs.

--out gets records of trec_qcomm.lab.records, of kind validation, scale and break_even.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from trec_qcomm.ext.planner.cost_model import Throughput
from trec_qcomm.lab.command_line import check_out, parser_of, run_tool
from trec_qcomm.lab.records import BreakEvenRecord, ScaleRecord, TableSizesRecord, append, read
from trec_qcomm.lab.simulate import report
from trec_qcomm.lab.simulate.measured import MeasuredStep, load_steps
from trec_qcomm.lab.simulate.plans import PLANS, Cluster, Link, Model
from trec_qcomm.lab.simulate.ratios import dense_values, find_configuration, ratios_at
from trec_qcomm.lab.simulate.step import Configuration, Device, Step, break_even, simulate
from trec_qcomm.lab.simulate.validation import FIT_CONFIGURATIONS, validate

# MLPerf's DLRM-DCNv2: ids a bag of its 26 tables; values of its layers, 13-512-256-128, a cross
# network of 3 layers of rank 512 on 27 x 128, and 3456-1024-1024-512-256-1.
MLPERF = Model(
    num_ids=(3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1),
    dim=128,
    batch_size=2048,
    dense_values=16_044_545,
)
FLOP_A_VALUE = 6  # and sample: a multiplication and an addition forward, twice that backward
GBIT_S = 8.0  # a GB/s
FIXED = {"tflop_s": 100.0, "nvlink_latency_us": 1.0, "network_latency_us": 2.0}  # assumed, too


def _list(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Return a parser of a,b,c. Its name is what argparse calls an invalid value."""

    def values(text: str) -> tuple[Any, ...]:
        return tuple(kind(word) for word in text.split(","))

    values.__name__ = f"list of {kind.__name__}"
    return values


CONFIGURATIONS = ("stock", "stock_fp16", "int8", "best")
_OPTIONS: tuple[tuple[str, Any, Any, str], ...] = (  # name, kind, default, help
    ("sizes", Path, None, "of python -m trec_qcomm sizes: the model is that of the sizes"),
    ("out", Path, None, "write all as JSON lines"),
    ("configs", _list(str), CONFIGURATIONS, "as the records name them; the first is what others "
     "are set against"),
    ("distinct-share", float, None, "share of bags that is sent where equal ones merge (default: "
     "measured)"),
    ("fit-configs", _list(str), FIT_CONFIGURATIONS, "two that are fitted on"),
    ("gpus", _list(int), (8, 16, 64, 256, 1024, 4096), "numbers of GPUs"),
    ("gpus-per-node", int, 8, ""),
    ("plans", _list(str), tuple(PLANS), "table-wise, row-wise, table-row-wise"),
    ("network-gbit-s", _list(float), (100.0, 200.0, 400.0), "between nodes, a GPU"),
    ("nvlink-gb-s", float, 450.0, "inside a node, a GPU"),
    ("encode-gb-s", float, 400.0, "assumed, of float32 rows"),
    ("decode-gb-s", float, 400.0, "assumed, of float32 rows"),
    ("compute-ms", float, None, "of a step without embeddings (default: of dense values at "
     f"{FIXED['tflop_s']:g} TFLOP/s)"),
    ("memory-gb-s", float, 2039.0, "assumed, of lookups; the default is an A100's"),
    ("overlap", float, None, "share of compute beside dense gradients (default: as fitted)"),
    ("dense-values", int, None, "of dense layers (default: MLPerf's, with --sizes the records')"),
)  # fmt: skip
_ASSUMED = (
    "encode_gb_s", "decode_gb_s", "compute_ms", "memory_gb_s", "nvlink_gb_s", "overlap",
    "pipeline", "distinct_share",
)  # fmt: skip
_POSITIVE = ("nvlink_gb_s", "encode_gb_s", "decode_gb_s", "memory_gb_s", "network_gbit_s")
_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(_POSITIVE, (lambda value: 0 < value < math.inf, "a finite number > 0")),
    "compute_ms": (lambda value: 0 <= value < math.inf, "a finite number >= 0"),
    "dense_values": (lambda value: value >= 0, "an integer >= 0"),
    "plans": (lambda value: value in PLANS, f"one of {', '.join(PLANS)}"),
    "distinct_share": (lambda value: 0 < value <= 1, "a number in (0, 1]"),
    "overlap": (lambda value: 0 <= value <= 1, "a number in [0, 1]"),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = parser_of("simulate", __doc__)
    parser.add_argument(
        "--records", type=Path, nargs="+", required=True, metavar="NET.jsonl",
        help="make bench-net's, of one model; plans may differ",
    )  # fmt: skip
    for name, kind, default, text in _OPTIONS:
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        told = f"{text} (default {shown})" if default is not None else text
        parser.add_argument(f"--{name}", type=kind, default=default, help=told)
    parser.add_argument("--force", action="store_true", help="overwrite --out")
    parser.add_argument("--parts", action="store_true", help="print the parts of every step")
    parser.add_argument("--pipeline", action="store_true", help="ids travel beside other compute")
    return parser


def check(arguments: argparse.Namespace) -> None:
    """Raise ValueError naming option and allowed values, unless all options make sense."""
    for name, (is_allowed, expected) in _ALLOWED.items():
        value = getattr(arguments, name)
        for each in value if isinstance(value, tuple) else (value,):
            if each is not None and not is_allowed(each):
                raise ValueError(f"{name.replace('_', '-')}: {each!r} is not {expected}")
    for num_gpus in arguments.gpus:
        cluster_of(arguments, num_gpus, 1.0)
    check_out(arguments.out, force=arguments.force)


def cluster_of(arguments: argparse.Namespace, num_gpus: int, gb_s: float) -> Cluster:
    """Return the cluster of the options. Args: gb_s: GB/s of a GPU's link between nodes."""
    return Cluster(
        num_gpus=num_gpus,
        gpus_per_node=arguments.gpus_per_node,
        intra=Link(latency_s=FIXED["nvlink_latency_us"] / 1e6, gb_s=arguments.nvlink_gb_s),
        inter=Link(latency_s=FIXED["network_latency_us"] / 1e6, gb_s=gb_s),
    )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Checked options of a case, without configuration, plan, number of GPUs and network speed.

    Args: arguments: the options, each with a value.
    """

    arguments: argparse.Namespace
    model: Model
    device: Device
    sizes: Sequence[TableSizesRecord]

    @property
    def assumed(self) -> dict[str, Any]:
        """Numbers that were not measured, by option."""
        return {name: getattr(self.arguments, name) for name in _ASSUMED} | FIXED

    def step(self, configuration: Configuration, plan: str, num_gpus: int, gb_s: float) -> Step:
        """Return one step. Args: gb_s: GB/s of a GPU's link between nodes."""
        cluster = cluster_of(self.arguments, num_gpus, gb_s)
        return simulate(configuration, plan, self.model, cluster, self.device)

    def at(self, configuration: Configuration, plan: str, num_gpus: int) -> Configuration:
        """Return the configuration with the ratios of this plan and number of GPUs."""
        cluster = cluster_of(self.arguments, num_gpus, 1.0)
        return ratios_at(configuration, self.sizes, plan, cluster)

    def case(
        self, configuration: Configuration, plan: str, num_gpus: int, gb_s: float
    ) -> ScaleRecord:
        """Return the record of one step. Args: gb_s: GB/s of a GPU's link between nodes."""
        step = self.step(self.at(configuration, plan, num_gpus), plan, num_gpus, gb_s)
        return ScaleRecord(
            configuration=configuration.name, num_gpus=num_gpus, plan=plan,
            network_gbit_s=gb_s * GBIT_S, step_s=step.step_s, parts_s=step.parts_s,
            communication_share=step.communication_share, assumed=self.assumed,
            extrapolated=report.UNTESTED,
        )  # fmt: skip

    def limit(
        self, base: Configuration, configuration: Configuration, plan: str, num_gpus: int
    ) -> BreakEvenRecord:
        """Return the link speed from which a configuration does not pay against the base."""
        both = [self.at(each, plan, num_gpus) for each in (base, configuration)]

        def saved_s(gb_s: float) -> float:
            base_s, here_s = (self.step(each, plan, num_gpus, gb_s).step_s for each in both)
            return base_s - here_s

        pays, gb_s = break_even(saved_s)
        return BreakEvenRecord(
            configuration=configuration.name, against=base.name, num_gpus=num_gpus, plan=plan,
            pays=pays, network_gbit_s=None if gb_s is None else gb_s * GBIT_S,
            assumed=self.assumed,
        )  # fmt: skip


def run(arguments: argparse.Namespace) -> str:
    """Validate, extrapolate, print and write; return the last line.

    Raises: ValueError: a mistake; the error names the option, or the file and its field.
    """
    check(arguments)
    steps, left_out = load_steps(*arguments.records)
    for reason in left_out:
        print(f"left out: {reason}", file=sys.stderr)
    configurations = [find_configuration(name, steps) for name in arguments.configs]
    if arguments.distinct_share is not None:
        configurations = [
            c if c.distinct_share == 1 else replace(c, distinct_share=arguments.distinct_share)
            for c in configurations
        ]
    fit, predictions = validate(steps, arguments.fit_configs)
    if arguments.overlap is None:
        arguments.overlap = fit.overlap
    sizes = read_sizes(arguments.sizes)
    model = model_of(arguments, sizes, steps)
    device = device_of(arguments, model)
    setting = Setting(arguments=arguments, model=model, device=device, sizes=sizes)
    clusters = [(plan, num) for plan in arguments.plans for num in arguments.gpus]
    cases = [
        setting.case(configuration, plan, num, speed / GBIT_S)
        for speed in arguments.network_gbit_s
        for plan, num in clusters
        for configuration in configurations
    ]
    base, *others = configurations
    limits = [setting.limit(base, c, plan, num) for plan, num in clusters for c in others]
    assumed = ", ".join(f"{name} {value}" for name, value in setting.assumed.items())
    texts = [
        report.validation_text(predictions),
        report.configurations_text(configurations),
        report.scale_text(cases),
        report.parts_text(cases) if arguments.parts else "",
        report.limits_text(limits, base.name),
        f"{report.ASSUMED}: {assumed}",
    ]
    print("\n\n".join(text for text in texts if text))
    if arguments.out is not None:
        arguments.out.unlink(missing_ok=True)
        append(arguments.out, *predictions, *cases, *limits)
    return f"{report.validation_line(predictions)}; throughputs assumed"


def read_sizes(path: Path | None) -> list[TableSizesRecord]:
    """Return the records of sizes in a file. Raises ValueError if there are none."""
    if path is None:
        return []
    records = [record for record in read(path) if isinstance(record, TableSizesRecord)]
    if not records:
        raise ValueError(f"sizes: {path}: no record of kind table_sizes")
    return records


def model_of(
    arguments: argparse.Namespace, sizes: Sequence[TableSizesRecord], steps: Sequence[MeasuredStep]
) -> Model:
    """Return MLPerf's model, or a model of the given sizes and the measured dense layers."""
    num_values = arguments.dense_values
    if not sizes:
        return MLPERF if num_values is None else replace(MLPERF, dense_values=num_values)
    tables = sizes[-1].tables.values()
    return Model(
        num_ids=(1.0,) * len(tables),
        dim=round(fmean(table.dim for table in tables)),
        batch_size=round(fmean(table.num_bags for table in tables)),
        dense_values=dense_values(steps) if num_values is None else num_values,
    )


def device_of(arguments: argparse.Namespace, model: Model) -> Device:
    """Return the GPU of the options. Its default compute follows the model's dense values."""
    flops = FLOP_A_VALUE * model.dense_values * model.batch_size
    speeds = {name: getattr(arguments, name) for name in ("encode_gb_s", "decode_gb_s")}
    return Device(
        compute_s=flops / (1e12 * FIXED["tflop_s"])
        if arguments.compute_ms is None
        else arguments.compute_ms / 1e3,
        memory_gb_s=arguments.memory_gb_s,
        throughput=Throughput(**speeds),
        overlap=arguments.overlap,
        pipeline=arguments.pipeline,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    return run_tool(build_parser(), words, run)
