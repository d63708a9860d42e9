"""Options of the simulation: the command line, and the checks of what it says."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from trec_qcomm.lab.simulate.plans import PLANS
from trec_qcomm.lab.simulate.validation import FIT_CONFIGURATIONS

# MLPerf's DLRM-DCNv2: ids a bag of its 26 tables; values of its layers, 13-512-256-128, a cross
# network of 3 layers of rank 512 on 27 x 128, and 3456-1024-1024-512-256-1.
MLPERF_IDS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
MLPERF_DENSE_VALUES = 16_044_545
MLPERF_DIM, BATCH_SIZE = 128, 2048
MOST_GPUS = 2**20

T = TypeVar("T")


def build_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the command line. Args: description: text above the options."""
    parser = argparse.ArgumentParser(
        prog="python -m trec_qcomm simulate",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--records",
        type=Path,
        nargs="+",
        required=True,
        metavar="NET.jsonl",
        help="make bench-net's, of one model; plans may differ",
    )
    add(
        "--sizes",
        type=Path,
        metavar="SIZES.jsonl",
        help="of python -m trec_qcomm sizes: bytes are predicted and set against the "
        "records', and the model is that of the sizes",
    )
    add("--out", type=Path, metavar="FILE.jsonl", help="write all as JSON lines")
    add("--force", action="store_true", help="overwrite --out")
    add(
        "--configs",
        type=_list(str),
        default=("stock", "stock_fp16", "int8", "best"),
        help="as the records name them; the first is what others are set against "
        "(default stock,stock_fp16,int8,best: fp32, FP16, INT8, best)",
    )
    add(
        "--distinct-share",
        type=float,
        help="share of bags that is sent where equal ones merge (default: measured)",
    )
    add(
        "--fit-configs",
        type=_list(str),
        default=FIT_CONFIGURATIONS,
        help=f"default {','.join(FIT_CONFIGURATIONS)}",
    )
    add(
        "--gpus",
        type=_list(int),
        default=(8, 16, 64, 256, 1024, 4096),
        help="default 8,16,64,256,1024,4096",
    )
    add("--parts", action="store_true", help="print the parts of every step")
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
    cluster("--decode-gb-s", type=float, default=400.0, help="of float32 rows (default 400)")
    cluster("--tflop-s", type=float, default=100.0, help="of dense layers (default 100)")
    cluster("--compute-ms", type=float, help="of a step without embeddings, in place of tflop-s")
    cluster("--memory-gb-s", type=float, default=2039.0, help="of lookups (default 2039, A100)")
    cluster("--nvlink-latency-us", type=float, default=1.0, help="a message (default 1)")
    cluster("--network-latency-us", type=float, default=2.0, help="a message (default 2)")
    cluster("--overlap", type=float, help="share of compute beside dense (default: as fitted)")
    cluster("--pipeline", action="store_true", help="ids travel beside the rest of compute")
    replicas = parser.add_argument_group("2D parallelism, extrapolated").add_argument
    replicas(
        "--replica-groups", type=int, default=1, help="groups with all tables each (default 1)"
    )
    replicas("--sync-every", type=int, default=1, help="steps from sync to sync (default 1)")
    replicas("--table-rows", type=int, help="rows of all tables (default: those of --sizes)")
    replicas(
        "--touched-share",
        type=float,
        help="share of the rows that a group touches from sync to sync",
    )
    model = parser.add_argument_group(
        "the model (default MLPerf's DLRM, or that of --sizes)"
    ).add_argument
    model("--ids", type=_list(float), help="ids of a bag, by table: 3,2,1,...")
    model("--dim", type=int, help="of all tables (default 128)")
    model("--batch-size", type=int, help="samples a GPU (default 2048)")
    model(
        "--dense-values",
        type=int,
        help="of dense layers (default 16,044,545; with --sizes those of the records)",
    )
    return parser


def assumptions(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what was not measured, by option."""
    names = (
        "encode_gb_s",
        "decode_gb_s",
        "tflop_s",
        "compute_ms",
        "memory_gb_s",
        "nvlink_gb_s",
        "nvlink_latency_us",
        "network_latency_us",
        "overlap",
        "pipeline",
        "distinct_share",
        "replica_groups",
        "sync_every",
        "touched_share",
    )
    return {name: getattr(arguments, name) for name in names}


_POSITIVE = ("nvlink_gb_s", "encode_gb_s", "decode_gb_s", "tflop_s", "memory_gb_s")
_NOT_NEGATIVE = ("nvlink_latency_us", "network_latency_us")


def check(arguments: argparse.Namespace) -> None:
    """Raise ValueError naming option and allowed values, unless all options make sense."""
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
    if arguments.compute_ms is not None and not 0 <= arguments.compute_ms < math.inf:
        _refuse("compute_ms", arguments.compute_ms, "a finite number >= 0")
    if arguments.overlap is not None and not 0 <= arguments.overlap <= 1:
        _refuse("overlap", arguments.overlap, "a number in [0, 1]")
    _check_replicas(arguments)
    if arguments.out is not None:
        _check_out(arguments.out, force=arguments.force)


def _check_replicas(arguments: argparse.Namespace) -> None:
    """Raise ValueError unless the options of 2D parallelism make sense."""
    groups, touched = arguments.replica_groups, arguments.touched_share
    if arguments.sync_every < 1:
        _refuse("sync_every", arguments.sync_every, "an integer >= 1")
    if groups < 1:
        _refuse("replica_groups", groups, "an integer >= 1")
    for num in arguments.gpus:
        node = min(num, arguments.gpus_per_node)
        if groups > 1 and (num % groups or (num // groups) % node):
            _refuse("replica_groups", groups, f"a divisor of {num} GPUs that leaves whole nodes")
    if groups == 1:
        return
    if touched is None or not 0 < touched <= 1:
        _refuse("touched_share", touched, "a number in (0, 1], which replica groups need")
    if arguments.table_rows is not None and arguments.table_rows < 1:
        _refuse("table_rows", arguments.table_rows, "an integer >= 1")
    if arguments.table_rows is None and arguments.sizes is None:
        _refuse("table_rows", None, "an integer >= 1, which replica groups need without sizes")


def _check_out(out: Path, *, force: bool) -> None:
    """Raise ValueError unless the file can be written. What is there stays as it is."""
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


def _list(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Return a parser of a,b,c. Its name is what argparse calls an invalid value."""

    def values(text: str) -> tuple[T, ...]:
        return tuple(kind(word) for word in text.split(","))

    values.__name__ = f"list of {kind.__name__}"
    return values
