"""Collectives of several ranks: a stress against the CPU's bits, or where the time of each goes.

On one GPU, with an NCCL that lets ranks share it (2.30.3 or newer):
  NCCL_MULTI_RANK_GPU_ENABLE=1 LD_PRELOAD=/path/to/libnccl.so.2 python -m torch.distributed.run \\
    --standalone --nproc-per-node 4 -m examples.bench.gpu_evidence.ranks stress --out stress.jsonl
    ... ranks trace --out trace.jsonl --traces FOLDER
Without a GPU, over gloo:
  python -m torch.distributed.run --standalone --nproc-per-node 2 \\
    -m examples.bench.gpu_evidence.ranks stress --device cpu --steps 5

`stress`: in each step some collectives are begun before the first of them is waited for, hosts and
streams stop for random whiles, and freed memory is overwritten with 0xFF, which is NaN as float32
and a wrong frame. At the end bytes are exchanged at addresses of 0 and 8 mod 16. The exit status is
1 where something differs.
`trace`: ms of a forward and a backward exchange, or of an all-reduce, of rank 0: the host, the GPU,
and gaps in which the GPU waits.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from examples.bench.command import build_parser, device_environment, show
from examples.bench.gpu_evidence.collectives import Dense, Rows, all_collectives, all_to_all_at
from trec_qcomm.comm.streams import side_stream
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord, Scalar

SHARING_NCCL = (2, 30, 3)  # the first whose ranks may share a GPU
AT_ONCE = 3  # collectives begun before one is waited for
OFFSETS = (0, 8)
STEPS = {"stress": 500, "trace": 10}
WARM_UP = 3  # steps before those that are traced
MOST_CYCLES = 2_000_000  # about a millisecond of a GPU
MOST_HOST_S = 1e-3
NBYTES = (512, 4096, 65536, 1 << 20, 4 << 20)  # of blocks as the allocator keeps them
Lines = Iterator[tuple[str, dict[str, Scalar]]]


class Hazards:
    """Delays and overwritten memory on this rank's device. Args: source: its random numbers."""

    def __init__(self, device: torch.device, source: random.Random) -> None:
        self._device, self._source = device, source

    def delay(self) -> None:
        """Stop the host, this stream or a side stream for a while, or none of them."""
        kind = self._source.randrange(5)
        if kind == 0:
            time.sleep(self._source.random() * MOST_HOST_S)
        elif self._device.type == "cuda" and kind in (1, 2, 3):
            cycles = self._source.randrange(1, MOST_CYCLES)
            if kind == 1:
                torch.cuda._sleep(cycles)
            else:
                with side_stream(self._device, use="rows" if kind == 2 else "gradients"):
                    torch.cuda._sleep(cycles)

    def overwrite_freed(self) -> None:
        """Take blocks of several sizes on each stream, fill them, and free them again."""
        self._fill()
        for use in ("rows", "gradients"):
            with side_stream(self._device, use=use):
                self._fill()

    def _fill(self) -> None:
        sizes = self._source.choices(NBYTES, k=6)
        _ = [torch.full((n,), 0xFF, dtype=torch.uint8, device=self._device) for n in sizes]


def stress(options: argparse.Namespace, device: torch.device) -> Lines:
    """Yield each collective and offset, and how often ranks were right and wrong. Collective."""
    mine = _outcomes(options, device)
    names = sorted({name for name, _ in mine})
    counts = torch.tensor([[mine[name, kind] for kind in ("right", "wrong")] for name in names])
    dist.all_reduce(counts)
    for name, (right, wrong) in zip(names, counts.tolist(), strict=True):
        yield name, {"right": right, "wrong": wrong}
    for offset in OFFSETS:
        call = all_to_all_at(offset, device, options.chunk)
        is_right = min(call() for _ in range(3))
        ms = round(_milliseconds(call), 4)
        both = torch.tensor([int(is_right), int(not is_right)])
        dist.all_reduce(both)
        right, wrong = both.tolist()
        yield f"all-to-all of bytes at {offset} mod 16", {"ms": ms, "right": right, "wrong": wrong}


def _outcomes(options: argparse.Namespace, device: torch.device) -> Counter[tuple[str, str]]:
    """Return how often each collective was "right" and "wrong" on this rank. Collective."""
    hazards = Hazards(device, random.Random(f"{options.seed} {dist.get_rank()}"))
    collectives = all_collectives(device)
    counts: Counter[tuple[str, str]] = Counter()
    ends_at = time.monotonic() + options.seconds
    for step in range(options.steps):
        if step >= len(collectives) and _agreed(time.monotonic() > ends_at):
            break
        # All of them come in the first steps, then any.
        chosen = random.Random(f"{options.seed} {step}").sample(collectives, AT_ONCE)
        if step < len(collectives):
            first = collectives[step]
            chosen = [first, *(c for c in chosen if c is not first)][:AT_ONCE]
        for collective in chosen:
            hazards.delay()
            collective.begin(step)
        hazards.overwrite_freed()
        for collective in chosen:
            hazards.delay()
            counts[collective.name, "right" if collective.end() else "wrong"] += 1
            hazards.overwrite_freed()
    return counts


def _agreed(stop: bool) -> bool:
    """Return what rank 0 says."""
    said = torch.tensor(int(stop))
    dist.broadcast(said, 0)
    return bool(said)


def _milliseconds(call: Callable[[], object], repeats: int = 20) -> float:
    times = []
    for _ in range(repeats):
        dist.barrier()
        begin = time.perf_counter()
        call()  # it reads the result, so it waits
        times.append(time.perf_counter() - begin)
    return sorted(times)[repeats // 2] * 1e3


def trace(options: argparse.Namespace, device: torch.device) -> Lines:
    """Yield each collective and figures of a step, ms and counts. Collective."""
    for collective in all_collectives(device):
        yield collective.name, _traced(collective, options, device)


def _traced(
    collective: Rows | Dense, options: argparse.Namespace, device: torch.device
) -> dict[str, Scalar]:
    for step in range(WARM_UP):
        _step(collective, step, device)
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device.type == "cuda" else []
    host_s = 0.0
    dist.barrier()
    with profile(activities=activities) as profiler:
        begin = time.perf_counter()
        for step in range(WARM_UP, WARM_UP + options.steps):
            host_s += _step(collective, step, device)
        wall_s = time.perf_counter() - begin
    if options.traces is not None and dist.get_rank() == 0:
        options.traces.mkdir(parents=True, exist_ok=True)
        file = options.traces / f"{collective.name.replace(' ', '-')}.json.gz"
        profiler.export_chrome_trace(str(file))
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA
    )
    figures = {"host_ms": host_s * 1e3, "wall_ms": wall_s * 1e3}
    if spans:
        busy_us = covered(spans)
        span_us = max(end for _, end in spans) - spans[0][0]
        figures |= {"gpu_busy_ms": busy_us / 1e3, "gpu_gaps_ms": (span_us - busy_us) / 1e3}
        figures["gpu_operations"] = float(len(spans))
    return {name: round(value / options.steps, 4) for name, value in figures.items()}


def _step(collective: Rows | Dense, step: int, device: torch.device) -> float:
    """Run the collective; return the seconds that the host took for it."""
    begin = time.perf_counter()
    collective.begin(step)
    collective.finish()
    taken = time.perf_counter() - begin
    if device.type == "cuda":
        torch.cuda.synchronize()
    return taken


def covered(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of sorted spans."""
    total, reached = 0.0, float("-inf")
    for begin, end in spans:
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


PROGRAMS: Mapping[str, Callable[[argparse.Namespace, torch.device], Lines]] = {
    "stress": stress,
    "trace": trace,
}


def main() -> int:
    """Join the ranks, run, say and record what came out. Return the exit status."""
    options = _parser().parse_args()
    options.steps = options.steps or STEPS[options.program]
    device = take_device(options.device)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=timedelta(seconds=120))
    calls = wrong = 0
    try:
        environment = device_environment(device)
        case = {"ranks": dist.get_world_size(), "device": options.device, "chunk": options.chunk}
        for name, figures in PROGRAMS[options.program](options, device):
            wrong += int(figures.get("wrong", 0))
            calls += int(figures.get("right", 1)) + int(figures.get("wrong", 0))
            if dist.get_rank() == 0:
                show(name, figures)
                if options.out is not None:
                    records.append(
                        options.out,
                        BenchRecord(
                            configuration=name, bench=f"gpu_{options.program}", seed=options.seed,
                            environment=environment, time=time.time(), case=case, figures=figures,
                        ),
                    )  # fmt: skip
        if dist.get_rank() == 0:
            ranks = dist.get_world_size()
            print(f"{options.program}: {calls} results on {ranks} ranks, {wrong} wrong")
        return 1 if wrong else 0
    finally:
        dist.destroy_process_group()


def take_device(name: str) -> torch.device:
    """Return the device of this rank; it ends the process where ranks cannot share the GPU."""
    if name == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    if not torch.cuda.is_available():
        sys.exit("error: no CUDA device; --device cpu runs without")
    count, local = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    if int(os.environ["LOCAL_WORLD_SIZE"]) > count:
        version = torch.cuda.nccl.version()
        if version < SHARING_NCCL or os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
            sys.exit(
                f"error: NCCL {'.'.join(map(str, version))}: ranks share a GPU from 2.30.3 on, "
                "with NCCL_MULTI_RANK_GPU_ENABLE=1; LD_PRELOAD another libnccl.so.2"
            )
    device = torch.device("cuda", local % count)
    torch.cuda.set_device(device)
    return device


def _parser() -> argparse.ArgumentParser:
    parser = build_parser(__doc__)
    add = parser.add_argument
    add("program", choices=PROGRAMS, help="what is run")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default cuda, with NCCL")
    add("--steps", type=int, help="default 500 of a stress, 10 of each collective of a trace")
    add("--seconds", type=float, default=200, help="a stress ends after so long (default 200)")
    add("--seed", type=int, default=0)
    add("--chunk", type=int, default=1 << 20, help="bytes to a peer at the offsets (default 2^20)")
    add("--traces", type=Path, metavar="FOLDER", help="write Chrome traces of rank 0 there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
