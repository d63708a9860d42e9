"""Stress of all collectives on several ranks, compared with the CPU's bits after each.

On one GPU, with an NCCL that lets ranks share it (2.30.3 or newer):
  NCCL_MULTI_RANK_GPU_ENABLE=1 LD_PRELOAD=/path/to/libnccl.so.2 python -m torch.distributed.run \\
    --standalone --nproc-per-node 4 -m examples.bench.gpu_evidence.stress --out stress.jsonl
Without a GPU, over gloo:
  python -m torch.distributed.run --standalone --nproc-per-node 2 \\
    -m examples.bench.gpu_evidence.stress --device cpu --steps 5

In each step some collectives are begun before the first of them is waited for, hosts and streams
stop for random whiles, and freed memory is overwritten. At the end bytes are exchanged at addresses
of 0 and 8 mod 16. The exit status is 1 where something differs. The last line of rank 0 says so.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from examples.bench.gpu_evidence.collectives import all_collectives, all_to_all_at
from examples.bench.gpu_evidence.hazards import Hazards
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord, Environment

SHARING_NCCL = (2, 30, 3)  # the first whose ranks may share a GPU
AT_ONCE = 3  # collectives begun before one is waited for
OFFSETS = (0, 8)


def run(options: argparse.Namespace, device: torch.device) -> Counter[tuple[str, str]]:
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


def offsets(device: torch.device, chunk: int) -> Iterator[tuple[int, bool, float]]:
    """Yield each offset, whether the bytes came right, and the milliseconds of a call (median)."""
    for offset in OFFSETS:
        call = all_to_all_at(offset, device, chunk)
        right = min(call() for _ in range(3))
        yield offset, right, _milliseconds(call, device)


def _milliseconds(call: Callable[[], object], device: torch.device, repeats: int = 20) -> float:
    times = []
    for _ in range(repeats):
        dist.barrier()
        begin = time.perf_counter()
        call()  # it reads the result, so it waits
        times.append(time.perf_counter() - begin)
    return sorted(times)[repeats // 2] * 1e3


def results(options: argparse.Namespace, device: torch.device) -> list[dict[str, object]]:
    """Run all; return a line for each collective and offset, the counts of all ranks together."""
    mine = run(options, device)
    names = sorted({name for name, _ in mine})
    counts = torch.tensor([[mine[name, kind] for kind in ("right", "wrong")] for name in names])
    dist.all_reduce(counts)
    lines: list[dict[str, object]] = [
        {"collective": name, "right": right, "wrong": wrong}
        for name, (right, wrong) in zip(names, counts.tolist(), strict=True)
    ]
    for offset, is_right, ms in offsets(device, options.chunk):
        all_right = torch.tensor([int(is_right), int(not is_right)])
        dist.all_reduce(all_right)
        line = {"collective": f"all-to-all of bytes at {offset} mod 16", "ms": round(ms, 4)}
        lines.append(line | dict(zip(("right", "wrong"), all_right.tolist(), strict=True)))
    return lines


def main() -> int:
    """Join the ranks, run, say and record what came out. Return the exit status."""
    options = _parser().parse_args()
    device = take_device(options.device)
    join_group(device, timedelta(seconds=120))
    try:
        lines = results(options, device)
        wrong = sum(int(str(line["wrong"])) for line in lines)
        if dist.get_rank() == 0:
            for line in lines:
                print("  ".join(f"{k} {v}" for k, v in line.items()), flush=True)
            if options.out is not None:
                records.append(options.out, *_records(lines, device, options))
            calls = sum(int(str(line["right"])) + int(str(line["wrong"])) for line in lines)
            print(f"stress: {calls} results on {dist.get_world_size()} ranks, {wrong} wrong")
        return 1 if wrong else 0
    finally:
        dist.destroy_process_group()


def join_group(device: torch.device, timeout: timedelta) -> None:
    """Initialize the process group that a launcher has described."""
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=timeout)


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


def _records(
    lines: list[dict[str, object]], device: torch.device, options: argparse.Namespace
) -> Iterator[BenchRecord]:
    hardware: dict[str, str | int | float] = {"gpu": "none"}
    if device.type == "cuda":
        hardware = {"gpu": torch.cuda.get_device_name(device)}
        hardware["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    environment = Environment.current(hardware=hardware)
    case = {"ranks": dist.get_world_size(), "device": options.device, "chunk": options.chunk}
    for line in lines:
        figures = {k: v for k, v in line.items() if k != "collective"}
        yield BenchRecord(
            configuration=str(line["collective"]),
            bench="gpu_stress",
            seed=options.seed,
            environment=environment,
            time=time.time(),
            case=case,
            figures=figures,  # type: ignore[arg-type]
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.bench.gpu_evidence.stress",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default cuda, with NCCL")
    add("--steps", type=int, default=500, help="default 500")
    add("--seconds", type=float, default=200, help="steps end after this long (default 200)")
    add("--seed", type=int, default=0)
    add("--chunk", type=int, default=1 << 20, help="bytes to a peer at the offsets (default 2^20)")
    add("--out", type=Path, metavar="FILE", help="append the records to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
