"""What one step does at which time: parts that a rank computes, and what is on its link.

Parts are read from torch's profiler. A coded all-reduce runs in a thread that it does not see; it
is noted by the clock, and what is no round of messages in it is coding. Where a rank waits there is
no part.

Knows: names of events of torch and trec_qcomm, TorchRec's sharded modules. Does not know: networks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from trec_qcomm.comm import exchange, transport
from trec_qcomm.comm.rows import autograd
from trec_qcomm.lab.records import BenchRecord, Environment

NUM_STEPS = 9  # the one of median length is taken
BIN_US = 20.0
GAP_MS, LEAST_MS = 0.3, 0.1  # a shorter gap is closed, a shorter span left out
STEP, IDS, LOOKUP, CODEC, BACKWARD = (
    f"## timeline {name} ##" for name in ("step", "ids", "lookup", "codec", "backward")
)
# Parts by words in the names of their events; inner events win. "": the rank waits.
_PARTS = {
    IDS: "ids",
    LOOKUP: "lookup",
    CODEC: "codec",
    "Optimizer.step": "optimizer",
    "CppNode": "lookup",  # FBGEMM's node of autograd, which updates the tables
}

Span = tuple[float, float]  # begin and end, in microseconds
Event = tuple[str, float, float]  # the same, with a name


def timeline(training: Any, feed: Any, rate: str) -> list[BenchRecord]:
    """Return a record for each lane and part of this rank's median step. Collective.

    Args: training: a MeasuredTraining.  feed: NUM_STEPS batches.  rate: rate of the links.
    """
    clocked: list[Event] = []
    begins: list[float] = []
    dist.barrier()
    with _named(training.trainer.dmp, clocked), profile(activities=[ProfilerActivity.CPU]) as trace:
        for _ in range(NUM_STEPS):
            begins.append(1e6 * time.perf_counter())
            with record_function(STEP):
                training.trainer.train_next(feed)
        dist.barrier()
    events = [(e.name, e.time_range.start, e.time_range.end) for e in trace.events()]
    steps = sorted(event[1:] for event in events if event[0] == STEP)
    number = int(np.argsort([end - begin for begin, end in steps])[len(steps) // 2])
    offset = steps[number][0] - begins[number]
    events += [(name, begin + offset, end + offset) for name, begin, end in clocked]
    file = Path(training.config)
    return [
        BenchRecord(
            bench="timeline",
            configuration=file.stem,
            config=file.read_text() if file.is_file() else None,
            setup=dict(training.setup),
            seed=training.seed,
            environment=Environment.current(repository=Path(__file__).parent),
            time=time.time(),
            case={"rate": rate, "lane": lane, "part": part},
            figures={"spans_ms": " ".join(f"{a:.1f}-{b:.1f}" for a, b in spans)},
        )
        for (lane, part), spans in lanes_of(events, *steps[number]).items()
    ]


def lanes_of(
    events: Sequence[Event], begin: float, end: float
) -> dict[tuple[str, str], list[Span]]:
    """Return the spans of each lane and part of a step, in milliseconds from its begin.

    Args:
        events: names with begin and end, those of other steps too.
        begin, end: the step, in microseconds.
    """
    inside = sorted((e for e in events if begin <= e[1] < end), key=lambda e: (e[1], -e[2]))
    phases = {e[0]: e[1] for e in inside if e[0] in (IDS, LOOKUP, BACKWARD)}
    names = ["", *dict.fromkeys([*_PARTS.values(), "forward", "backward"])]
    parts = np.zeros(int((end - begin) / BIN_US) + 1, dtype=np.int64)
    spans: dict[tuple[str, str], list[Span]] = {("computes", "step"): [(0.0, end - begin)]}
    for name, first, last in inside:
        at = slice(int((first - begin) / BIN_US), int((min(last, end) - begin) / BIN_US) + 1)
        traffic, part = _traffic(name, first, phases), _part(name)
        if traffic is not None:
            lane = "all-reduce" if traffic in ("dense", "codec") else "all-to-all"
            key = (lane, traffic)
            spans.setdefault(key, []).append((first - begin, min(last, end) - begin))
        elif part is not None:
            parts[at] = names.index(part)
        elif name.startswith(("aten::", "fbgemm::")):  # within another part it belongs to that
            parts[at][parts[at] == 0] = names.index(_phase(first, phases))
    edges = np.flatnonzero(np.diff(parts, prepend=0, append=0))
    for first, last in pairwise(edges):
        if parts[first]:
            key = ("computes", names[parts[first]])
            spans.setdefault(key, []).append((first * BIN_US, last * BIN_US))
    merged = {key: _merged(several) for key, several in spans.items()}
    return {key: several for key, several in merged.items() if several}


def _part(name: str) -> str | None:
    """Return the part that an event begins; None of an operator."""
    if name.startswith("## ") and name.endswith((" start ##", " wait ##")):
        return ""  # what it computes are events within
    return next((part for word, part in _PARTS.items() if word in name), None)


def _phase(begin: float, phases: dict[str, float]) -> str:
    """Return the part that an operator belongs to if it is within no other."""
    if begin >= phases[BACKWARD]:
        return "backward"
    return "ids" if phases[IDS] <= begin < phases[LOOKUP] else "forward"


def _traffic(name: str, begin: float, phases: dict[str, float]) -> str | None:
    """Return the kind of traffic of an event; None of a part of a step."""
    if name in ("gloo:all_reduce", "run_round", "drive"):
        return "codec" if name == "drive" else "dense"
    if name != "gloo:all_to_all":
        return None
    return "ids" if begin < phases[LOOKUP] else "rows" if begin < phases[BACKWARD] else "gradients"


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Return spans in milliseconds, without short ones and short gaps."""
    merged: list[Span] = []
    for begin, end in sorted((1e-3 * a, 1e-3 * b) for a, b in spans):
        if merged and begin - merged[-1][1] < GAP_MS:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return [span for span in merged if span[1] - span[0] >= LEAST_MS]


@contextmanager
def _named(model: torch.nn.Module, clocked: list[Event]) -> Iterator[None]:
    """Name parts of a step in profiles, and note all-reduces and their rounds by the clock."""
    named = [
        (CODEC, autograd, "encode_frames"),
        (CODEC, exchange, "decode_frames"),
        (CODEC, exchange, "decode_sum"),
        (BACKWARD, torch.Tensor, "backward"),
    ]
    for module in model.modules():
        if hasattr(module, "compute_and_output_dist"):
            named += [(IDS, module, "input_dist"), (LOOKUP, module, "compute_and_output_dist")]
    with ExitStack() as stack:
        for function in ("drive", "run_round"):
            timed = _timed(clocked, getattr(transport, function))
            stack.enter_context(patch.object(transport, function, timed))
        for name, place, function in named:
            stack.enter_context(
                patch.object(place, function, _with_name(name, getattr(place, function)))
            )
        yield


def _with_name(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def named(*arguments: Any, **more: Any) -> Any:
        with record_function(name):
            return function(*arguments, **more)

    return named


def _timed(clocked: list[Event], function: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*arguments: Any, **more: Any) -> Any:
        begin = 1e6 * time.perf_counter()
        result = function(*arguments, **more)
        clocked.append((function.__name__, begin, 1e6 * time.perf_counter()))
        return result

    return timed
