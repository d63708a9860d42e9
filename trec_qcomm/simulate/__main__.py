"""Predict a training step on 8 to 4,096 GPUs, with and without compression, and where it pays.

examples:
  python -m trec_qcomm.simulate --records examples/bench/results/net.jsonl
  python -m trec_qcomm.simulate --records net.jsonl --gpus 16,128 --network-gbit-s 200 --plans tw
  python -m trec_qcomm.simulate --records net.jsonl --encode-gb-s 150 --out s.jsonl

Three parts, in this order. First a step between emulated hosts on a slow link is predicted from one
without a limit, and set against what was measured (validation.py says how, and what is fitted on
which runs). Then another model, an alpha-beta one of clusters of two link levels that nobody here
has, with the ratios of the records (step.py, plans.py, links.py hold the formulas). Last, for every
way the speed of the links between nodes above which it is no faster than the first of --ways.

The first part tests of the second one the bytes that are sent, and the share of compute beside
which dense gradients travel (overlap: fitted there, with gloo on a few CPU cores). It does not test
plans, two link levels, latencies, or times of codecs, lookups and dense layers. What no GPU has
told us is an option and is called assumed in all output; examples/bench/gpu.py measures a GPU's
codecs.

The ratios are those of the records' model and of its dim and batch, the share of distinct bags that
of its features of one id each; where bags repeat less --distinct-share says so, and with 1 what
remains is the codecs' own part.

--out gets JSON lines, told apart by the field "simulate": validation (way, hosts, rate,
predicted_s, measured_s, fitted, fit), scale (way, num_gpus, plan, network_gbit_s, step_s,
communication_share, parts_s, assumed), break_even (way, against, num_gpus, plan, pays,
network_gbit_s, assumed; pays is below that speed, always or never).
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from trec_qcomm.control.cost_model import Link, Throughput
from trec_qcomm.simulate import report
from trec_qcomm.simulate.links import Cluster
from trec_qcomm.simulate.plans import PLANS, Model
from trec_qcomm.simulate.records import Run, find_way, load_runs
from trec_qcomm.simulate.report import GBIT_S, Case, Limit
from trec_qcomm.simulate.step import Device, Way, break_even, simulate
from trec_qcomm.simulate.validation import FIT_WAYS, validate

# MLPerf's DLRM-DCNv2: ids a bag of its 26 tables; values of its layers, 13-512-256-128, a cross
# network of 3 layers of rank 512 on 27 x 128, and 3456-1024-1024-512-256-1.
MLPERF_IDS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
MLPERF_DENSE_VALUES = 16_044_545
MOST_GPUS = 2**20

T = TypeVar("T")


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trec_qcomm.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--records", type=Path, required=True, metavar="NET.jsonl", help="of make bench-net")
    add("--out", type=Path, metavar="FILE.jsonl", help="write all as JSON lines")
    add("--force", action="store_true", help="overwrite --out")
    add(
        "--ways",
        type=_list(str),
        default=("stock", "stock_fp16", "int8", "best"),
        help="as the records name them; the first is what others are set against "
        "(default stock,stock_fp16,int8,best: fp32, FP16, INT8, best)",
    )
    add("--distinct-share", type=float, help="of bags, where equal ones merge (default: measured)")
    add("--fit-ways", type=_list(str), default=FIT_WAYS, help=f"default {','.join(FIT_WAYS)}")
    add(
        "--gpus",
        type=_list(int),
        default=(8, 16, 64, 256, 1024, 4096),
        help="default 8,16,64,256,1024,4096",
    )
    add("--gpus-per-node", type=int, default=8, help="default 8")
    add("--plans", type=_list(str), default=tuple(PLANS), help=f"default {','.join(PLANS)}")
    add(
        "--network-gbit-s",
        type=_list(float),
        default=(100.0, 200.0, 400.0),
        help="between nodes, a GPU (default 100,200,400)",
    )
    add("--nvlink-gb-s", type=float, default=450.0, help="inside a node, a GPU (default 450)")
    cluster = parser.add_argument_group("assumed, of a GPU").add_argument
    cluster("--encode-gb-s", type=float, default=400.0, help="of float32 rows (default 400)")
    cluster("--decode-gb-s", type=float, default=400.0, help="likewise (default 400)")
    cluster("--tflop-s", type=float, default=100.0, help="of dense layers (default 100)")
    cluster("--memory-gb-s", type=float, default=2039.0, help="of lookups (default 2039, A100)")
    cluster("--nvlink-latency-us", type=float, default=1.0, help="a message (default 1)")
    cluster("--network-latency-us", type=float, default=2.0, help="a message (default 2)")
    cluster("--overlap", type=float, help="share of compute beside dense (default: as fitted)")
    cluster("--pipeline", action="store_true", help="ids travel beside the rest of compute")
    model = parser.add_argument_group("the model (default MLPerf's DLRM)").add_argument
    model("--ids", type=_list(float), default=MLPERF_IDS, help="a bag, by table: 3,2,1,...")
    model("--dim", type=int, default=128, help="of all tables (default 128)")
    model("--batch-size", type=int, default=2048, help="samples a GPU (default 2048)")
    model(
        "--dense-values",
        type=int,
        default=MLPERF_DENSE_VALUES,
        help="of dense layers (default 16,044,545)",
    )
    return parser


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All but way, plan, number of GPUs and speed of the network, checked."""

    model: Model
    device: Device
    intra: Link
    latency_s: float
    gpus_per_node: int
    ways: tuple[Way, ...]

    def step_s(self, way: Way, plan: str, num_gpus: int, gb_s: float) -> float:
        """See case."""
        return self.case(way, plan, num_gpus, gb_s).step.step_s

    def case(self, way: Way, plan: str, num_gpus: int, gb_s: float) -> Case:
        """One step. Args: gb_s: between nodes, a GPU."""
        cluster = Cluster(
            num_gpus=num_gpus,
            gpus_per_node=self.gpus_per_node,
            intra=self.intra,
            inter=Link(latency_s=self.latency_s, gb_s=gb_s),
        )
        step = simulate(way, plan, self.model, cluster, self.device)
        speed = gb_s * GBIT_S
        return Case(way=way.name, num_gpus=num_gpus, plan=plan, network_gbit_s=speed, step=step)

    def limit(self, way: Way, plan: str, num_gpus: int) -> Limit:
        """Where `way` stops to pay."""
        base = self.ways[0]
        found = break_even(
            lambda gb_s: (
                self.step_s(base, plan, num_gpus, gb_s) - self.step_s(way, plan, num_gpus, gb_s)
            )
        )
        return Limit(way=way.name, num_gpus=num_gpus, plan=plan, found=found)


def run(arguments: argparse.Namespace) -> str:
    """Validate, extrapolate, print, write; returns the last line.

    Raises: ValueError naming the option, or the file and its field.
    """
    _check(arguments)
    runs, left_out = load_runs(arguments.records)
    for reason in left_out:
        print(f"left out: {reason}", file=sys.stderr)
    ways = tuple(_way(name, runs, arguments.distinct_share) for name in arguments.ways)
    fit, predictions = validate(runs, arguments.fit_ways)
    if arguments.overlap is None:
        arguments.overlap = fit.overlap
    setting = read_setting(arguments, ways)
    places = [(plan, num) for plan in arguments.plans for num in arguments.gpus]
    cases = [
        setting.case(way, plan, num, speed / GBIT_S)
        for speed in arguments.network_gbit_s
        for plan, num in places
        for way in ways
    ]
    limits = [setting.limit(way, plan, num) for plan, num in places for way in ways[1:]]
    base, assumed = ways[0].name, assumptions(arguments)
    texts = [
        report.validation_text(fit, predictions),
        report.ways_text(ways),
        report.scale_text(cases),
        report.limits_text(limits, base),
        f"{report.ASSUMED}: {', '.join(f'{name} {value}' for name, value in assumed.items())}",
    ]
    print("\n\n".join(texts))
    if arguments.out is not None:
        records = [
            *report.validation_records(fit, predictions),
            *report.scale_records(cases, assumed),
            *report.limit_records(limits, base, assumed),
        ]
        _write(arguments.out, records)
    return report.last_line(predictions, cases, base)


def _write(out: Path, records: Sequence[dict[str, Any]]) -> None:
    try:
        out.write_text("".join(json.dumps(record) + "\n" for record in records))
    except OSError as error:
        raise ValueError(f"out {out}: cannot be written: {error.strerror}") from error


def _way(name: str, runs: Sequence[Run], distinct: float | None) -> Way:
    way = find_way(name, runs)
    return way if distinct is None or way.distinct == 1 else replace(way, distinct=distinct)


def read_setting(arguments: argparse.Namespace, ways: tuple[Way, ...]) -> Setting:
    """Raises ValueError naming the option."""
    return Setting(
        model=Model(
            num_ids=tuple(arguments.ids),
            dim=arguments.dim,
            batch_size=arguments.batch_size,
            dense_values=arguments.dense_values,
        ),
        device=Device(
            tflop_s=arguments.tflop_s,
            memory_gb_s=arguments.memory_gb_s,
            throughput=Throughput(
                encode_gb_s=arguments.encode_gb_s, decode_gb_s=arguments.decode_gb_s
            ),
            overlap=arguments.overlap,
            pipeline=arguments.pipeline,
        ),
        intra=Link(latency_s=arguments.nvlink_latency_us / 1e6, gb_s=arguments.nvlink_gb_s),
        latency_s=arguments.network_latency_us / 1e6,
        gpus_per_node=arguments.gpus_per_node,
        ways=ways,
    )


def assumptions(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was not measured, by option."""
    names = (
        "encode_gb_s",
        "decode_gb_s",
        "tflop_s",
        "memory_gb_s",
        "nvlink_gb_s",
        "nvlink_latency_us",
        "network_latency_us",
        "overlap",
        "pipeline",
        "distinct_share",
    )
    return {name: getattr(arguments, name) for name in names}


_POSITIVE = ("nvlink_gb_s", "encode_gb_s", "decode_gb_s", "tflop_s", "memory_gb_s")
_NOT_NEGATIVE = ("nvlink_latency_us", "network_latency_us")


def _check(arguments: argparse.Namespace) -> None:
    """Raises ValueError naming option and allowed values."""
    for name in _POSITIVE:
        if not 0 < getattr(arguments, name) < math.inf:
            _refuse(name, getattr(arguments, name), "a finite number > 0")
    for name in _NOT_NEGATIVE:
        if not 0 <= getattr(arguments, name) < math.inf:
            _refuse(name, getattr(arguments, name), "a finite number >= 0")
    for speed in arguments.network_gbit_s:
        if not 0 < speed < math.inf:
            _refuse("network_gbit_s", speed, "a finite number > 0")
    if arguments.gpus_per_node < 1:
        _refuse("gpus_per_node", arguments.gpus_per_node, "an integer >= 1")
    for num in arguments.gpus:
        node = arguments.gpus_per_node
        if not 1 <= num <= MOST_GPUS or (num > node and num % node):
            _refuse("gpus", num, f"1 to {node}, or a multiple of {node} up to {MOST_GPUS}")
    for plan in arguments.plans:
        if plan not in PLANS:
            _refuse("plans", plan, f"one of {', '.join(PLANS)}")
    share = arguments.distinct_share
    if share is not None and not 0 < share <= 1:
        _refuse("distinct_share", share, "a number in (0, 1]")
    if arguments.overlap is not None and not 0 <= arguments.overlap <= 1:
        _refuse("overlap", arguments.overlap, "a number in [0, 1]")
    if arguments.out is not None:
        _check_out(arguments.out, force=arguments.force)


def _check_out(out: Path, *, force: bool) -> None:
    """Before any work. What is there stays as it is. Raises ValueError: it cannot be written."""
    try:
        if out.is_dir() or not out.parent.is_dir():
            raise ValueError(f"out {out}: expected a file in a folder that exists")
        existed = out.exists()
        if existed and not force:
            raise ValueError(f"out {out}: exists; --force overwrites it")
        with out.open("ab"):
            pass
        if not existed:
            out.unlink()
    except OSError as error:
        raise ValueError(f"out {out}: cannot be written: {error.strerror}") from error


def _refuse(name: str, value: object, expected: str) -> None:
    raise ValueError(f"{name.replace('_', '-')}: {value!r} is not {expected}")


def main(words: Sequence[str] | None = None) -> int:
    """As the command line says; a mistake in it ends with status 2."""
    parser = build_parser()
    arguments = parser.parse_args(words)
    try:
        print(run(arguments))
    except ValueError as error:
        parser.error(str(error))
    return 0


def _list(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Of a,b,c; what argparse calls an invalid value it calls by the function's name."""

    def values(text: str) -> tuple[T, ...]:
        return tuple(kind(word) for word in text.split(","))

    values.__name__ = f"list of {kind.__name__}"
    return values


if __name__ == "__main__":
    sys.exit(main())
