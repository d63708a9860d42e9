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


def _list(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Return a parser of a,b,c. Its name is what argparse calls an invalid value."""

    def values(text: str) -> tuple[T, ...]:
        return tuple(kind(word) for word in text.split(","))

    values.__name__ = f"list of {kind.__name__}"
    return values


Option = tuple[str, Any, Any, str]  # name, kind, default, help; of kind bool it takes no value
_OPTIONS: dict[str, tuple[Option, ...]] = {  # by the title of their group
    "": (
        ("--sizes", Path, None, "of python -m trec_qcomm sizes: bytes are predicted and "
         "set against the records', and the model is that of the sizes"),
        ("--out", Path, None, "write all as JSON lines"),
        ("--force", bool, False, "overwrite --out"),
        ("--configs", _list(str), ("stock", "stock_fp16", "int8", "best"), "as the records name "
         "them; the first is what others are set against (default stock,stock_fp16,int8,best: "
         "fp32, FP16, INT8, best)"),
        ("--distinct-share", float, None, "share of bags that is sent where equal ones merge "
         "(default: measured)"),
        ("--fit-configs", _list(str), FIT_CONFIGURATIONS,
         f"default {','.join(FIT_CONFIGURATIONS)}"),
        ("--gpus", _list(int), (8, 16, 64, 256, 1024, 4096), "default 8,16,64,256,1024,4096"),
        ("--parts", bool, False, "print the parts of every step"),
        ("--gpus-per-node", int, 8, "default 8"),
        ("--plans", _list(str), tuple(PLANS), f"default {','.join(PLANS)}"),
        ("--network-gbit-s", _list(float), (100.0, 200.0, 400.0), "between nodes, a GPU (default "
         "100,200,400)"),
        ("--nvlink-gb-s", float, 450.0, "inside a node, a GPU (default 450)"),
    ),
    "assumed, of a GPU": (
        ("--encode-gb-s", float, 400.0, "of float32 rows (default 400)"),
        ("--decode-gb-s", float, 400.0, "of float32 rows (default 400)"),
        ("--tflop-s", float, 100.0, "of dense layers (default 100)"),
        ("--compute-ms", float, None, "of a step without embeddings, in place of tflop-s"),
        ("--memory-gb-s", float, 2039.0, "of lookups (default 2039, A100)"),
        ("--nvlink-latency-us", float, 1.0, "a message (default 1)"),
        ("--network-latency-us", float, 2.0, "a message (default 2)"),
        ("--overlap", float, None, "share of compute beside dense (default: as fitted)"),
        ("--pipeline", bool, False, "ids travel beside the rest of compute"),
    ),
    "2D parallelism, extrapolated": (
        ("--replica-groups", int, 1, "groups with all tables each (default 1)"),
        ("--sync-every", int, 1, "steps from sync to sync (default 1)"),
        ("--table-rows", int, None, "rows of all tables (default: those of --sizes)"),
        ("--touched-share", float, None, "share of the rows that a group touches from sync to "
         "sync"),
    ),
    "the model (default MLPerf's DLRM, or that of --sizes)": (
        ("--ids", _list(float), None, "ids of a bag, by table: 3,2,1,..."),
        ("--dim", int, None, "of all tables (default 128)"),
        ("--batch-size", int, None, "samples a GPU (default 2048)"),
        ("--dense-values", int, None, "of dense layers (default 16,044,545; with --sizes those of "
         "the records)"),
    ),
}  # fmt: skip
_ASSUMED = (
    "encode_gb_s", "decode_gb_s", "tflop_s", "compute_ms", "memory_gb_s", "nvlink_gb_s",
    "nvlink_latency_us", "network_latency_us", "overlap", "pipeline", "distinct_share",
    "replica_groups", "sync_every", "touched_share",
)  # fmt: skip
_POSITIVE = ("nvlink_gb_s", "encode_gb_s", "decode_gb_s", "tflop_s", "memory_gb_s")
_NOT_NEGATIVE = ("nvlink_latency_us", "network_latency_us", "compute_ms")


def build_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the command line. Args: description: text above the options."""
    parser = argparse.ArgumentParser(
        prog="python -m trec_qcomm simulate",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--records", type=Path, nargs="+", required=True, metavar="NET.jsonl",
        help="make bench-net's, of one model; plans may differ",
    )  # fmt: skip
    for title, options in _OPTIONS.items():
        add = (parser.add_argument_group(title) if title else parser).add_argument
        for name, kind, default, text in options:
            if kind is bool:
                add(name, action="store_true", help=text)
            else:
                metavar = "FILE.jsonl" if kind is Path else None
                add(name, type=kind, default=default, help=text, metavar=metavar)
    return parser


def assumptions(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what was not measured, by option."""
    return {name: getattr(arguments, name) for name in _ASSUMED}


def check(arguments: argparse.Namespace) -> None:
    """Raise ValueError naming option and allowed values, unless all options make sense."""
    for name in _POSITIVE:
        if not 0 < getattr(arguments, name) < math.inf:
            _refuse(name, getattr(arguments, name), "a finite number > 0")
    for name in _NOT_NEGATIVE:
        if not 0 <= (getattr(arguments, name) or 0.0) < math.inf:
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
