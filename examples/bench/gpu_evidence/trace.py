"""Where the time of each collective goes: host, GPU, and gaps in which the GPU waits.

  python -m torch.distributed.run --standalone --nproc-per-node 4 \\
    -m examples.bench.gpu_evidence.trace --out trace.jsonl --traces FOLDER
The environment is that of examples.bench.gpu_evidence.stress. --device cpu has no GPU part. Figures
are of a forward and a backward exchange, or an all-reduce, of rank 0.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from examples.bench.gpu_evidence.collectives import Dense, Rows, all_collectives
from examples.bench.gpu_evidence.stress import join_group, take_device
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord, Environment

WARM_UP = 3


def figures_of(
    collective: Rows | Dense, steps: int, device: torch.device, trace: Path | None
) -> dict[str, float]:
    """Return figures of a step in ms, and counts. Collective."""
    for step in range(WARM_UP):
        _step(collective, step, device)
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device.type == "cuda" else []
    host_s = 0.0
    dist.barrier()
    with profile(activities=activities) as profiler:
        begin = time.perf_counter()
        for step in range(WARM_UP, WARM_UP + steps):
            host_s += _step(collective, step, device)
        wall_s = time.perf_counter() - begin
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA
    )
    figures = {"host_ms": host_s * 1e3, "wall_ms": wall_s * 1e3}
    if spans:
        busy_us = _covered(spans)
        span_us = max(end for _, end in spans) - spans[0][0]
        figures |= {"gpu_busy_ms": busy_us / 1e3, "gpu_gaps_ms": (span_us - busy_us) / 1e3}
        figures |= {"gpu_operations": float(len(spans))}
    return {name: round(value / steps, 4) for name, value in figures.items()}


def _step(collective: Rows | Dense, step: int, device: torch.device) -> float:
    """Run the collective; return the seconds that the host took for it."""
    begin = time.perf_counter()
    collective.begin(step)
    collective.finish()
    taken = time.perf_counter() - begin
    if device.type == "cuda":
        torch.cuda.synchronize()
    return taken


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of sorted spans."""
    covered, reached = 0.0, float("-inf")
    for begin, end in spans:
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


def main() -> int:
    """Join the ranks, trace each collective, record. Return the exit status."""
    options = _parser().parse_args()
    device = take_device(options.device)
    join_group(device, timedelta(seconds=120))
    try:
        environment = Environment.current()
        for collective in all_collectives(device):
            trace = None
            if options.traces is not None and dist.get_rank() == 0:
                options.traces.mkdir(parents=True, exist_ok=True)
                trace = options.traces / f"{collective.name.replace(' ', '-')}.json.gz"
            figures = figures_of(collective, options.steps, device, trace)
            if dist.get_rank() == 0:
                print("  ".join([collective.name, *_words(figures)]), flush=True)
                if options.out is not None:
                    records.append(
                        options.out,
                        BenchRecord(
                            configuration=collective.name,
                            bench="gpu_trace",
                            environment=environment,
                            time=time.time(),
                            case={"ranks": dist.get_world_size(), "device": options.device},
                            figures=figures,
                        ),
                    )
        return 0
    finally:
        dist.destroy_process_group()


def _words(figures: dict[str, float]) -> Iterator[str]:
    return (f"{name} {value}" for name, value in figures.items())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.bench.gpu_evidence.trace",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default cuda, with NCCL")
    add("--steps", type=int, default=10, help="steps of each collective (default 10)")
    add("--out", type=Path, metavar="FILE", help="append the records to this file")
    add("--traces", type=Path, metavar="FOLDER", help="write Chrome traces of rank 0 there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
