"""The all-reduce of a DLRM's dense gradients on a real network: step time and bytes, by way.

  torchrun --nproc-per-node 2 dense.py --configs ../../configs/dense_*.yaml
  netlab --hosts 4 --rate 100mbit -- python dense.py --configs ../../configs/dense_int8.yaml

Every rank runs this once; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which it is. The model
is the dense part of a DLRM of 26 tables of 64 columns, 13-512-256-64 and 415-512-512-256-1. Ways:
`ddp`, its own float32 all-reduce; `fp16`, torch's fp16_compress_hook; `none`, no all-reduce at all;
and the `dense` of each config. They take turns step by step, so that what else the machine does
falls on all alike. Before that each way's gradients are held against the exact mean: ranks whose
bits differ, or an error above the mean itself, are an error here, and nothing is timed.

Bytes are those that the network interface sent ($GLOO_SOCKET_IFNAME, default lo), with the headers
of TCP and what the kernel sends beside; `counted` is what trec_qcomm counts. One JSON object a way
with --json, and a table, both by rank 0.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from tqdm import trange

from trec_qcomm import compress_ddp

PLAIN = ("none", "ddp", "fp16")
BOTTOM, TOP = (13, 512, 256, 64), (415, 512, 512, 256, 1)
LARGEST_ERROR = 1.0  # of the mean's norm; zeros would have it


@dataclass
class Way:
    """One way to all-reduce. Args: hook: ours, or None.  seconds, nbytes: of each step."""

    name: str
    ddp: DistributedDataParallel
    hook: Any = None
    seconds: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)


class Dense(nn.Module):
    """The two MLPs; between them the pairs of 27 features stand for themselves."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bottom, self.top = _mlp(BOTTOM), _mlp(TOP)

    def forward(self, x: Tensor, pairs: Tensor) -> Tensor:
        return self.top(torch.cat([self.bottom(x), pairs], 1)).square().mean()


def _mlp(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_way(name: str) -> Way:
    """Of a plain name, or of the config in that file."""
    ddp = DistributedDataParallel(Dense())
    if name == "fp16":
        ddp.register_comm_hook(None, fp16_compress_hook)
    if name in PLAIN:
        return Way(name, ddp)
    return Way(Path(name).stem, ddp, compress_ddp(ddp, name))


def batch(size: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(size, n, generator=generator) for n in (BOTTOM[0], 351))  # type: ignore[return-value]


def backward(way: Way, data: tuple[Tensor, Tensor]) -> Tensor:
    """One forward and backward; the gradients, [E]."""
    way.ddp.zero_grad()
    if way.name == "none":
        with way.ddp.no_sync():
            way.ddp(*data).backward()
    else:
        way.ddp(*data).backward()
    return torch.cat([p.grad.flatten() for p in way.ddp.parameters()])


def check(way: Way, size: int) -> float:
    """The error of one step's gradients, of the mean's norm. Raises RuntimeError: wrong ones."""
    data = batch(size, dist.get_rank())
    exact = backward(Way("none", way.ddp), data).double()
    dist.all_reduce(exact)
    exact /= dist.get_world_size()
    found = backward(way, data)
    if way.name == "none":
        return 0.0
    first = found.clone()
    dist.broadcast(first, 0)
    error = float((found.double() - exact).norm() / exact.norm())
    if not torch.equal(first, found) or not error < LARGEST_ERROR:
        raise RuntimeError(f"{way.name}: ranks differ, or an error of {error:.3g} of the mean")
    return error


def sent_nbytes(interface: str) -> int:
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


def measure(ways: Sequence[Way], size: int, num_steps: int, interface: str) -> None:
    """Let the ways take turns."""
    quiet = dist.get_rank() != 0
    for step in trange(num_steps, desc="steps of every way", disable=quiet):
        data = batch(size, 1000 * (step + 1) + dist.get_rank())
        for way in ways:
            dist.barrier()
            before, begin = sent_nbytes(interface), time.perf_counter()
            backward(way, data)
            way.seconds.append(time.perf_counter() - begin)
            way.nbytes.append(sent_nbytes(interface) - before)


def row(way: Way, error: float, num_steps: int, numel: int) -> dict[str, Any]:
    """What is reported of a way, the slowest rank's time."""
    times = torch.tensor(way.seconds, dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    p20, p50, p80 = (float(times.quantile(q)) for q in (0.2, 0.5, 0.8))
    counted = None
    if way.hook is not None:
        counted = way.hook.stats().dense.wire_nbytes / (num_steps + 1)
    return {
        "way": way.name,
        "world_size": dist.get_world_size(),
        "numel": numel,
        "step_s": {"p20": p20, "p50": p50, "p80": p80},
        "sent_nbytes": statistics.median(way.nbytes),
        "counted_nbytes": counted,
        "error_of_first_step": error,
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--configs", nargs="*", default=[], help="YAML files of trec_qcomm with `dense`")
    add("--batch-size", type=int, default=256, help="samples a rank (default 256)")
    add("--steps", type=int, default=20, help="of every way (default 20)")
    add("--json", type=Path, default=None, metavar="FILE", help="append one object a way")
    arguments = parser.parse_args()
    if min(arguments.batch_size, arguments.steps) < 1:
        parser.error("batch-size and steps must be positive")
    interface = os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    ways = [make_way(name) for name in (*PLAIN, *arguments.configs)]
    errors = [check(way, arguments.batch_size) for way in ways]
    measure(ways, arguments.batch_size, arguments.steps, interface)
    numel = sum(p.numel() for p in ways[0].ddp.parameters())
    pairs = zip(ways, errors, strict=True)
    rows = [row(way, error, arguments.steps, numel) for way, error in pairs]
    if dist.get_rank() == 0:
        report(rows, arguments.json)
    dist.destroy_process_group()


def report(rows: Sequence[dict[str, Any]], json_file: Path | None) -> None:
    base = next(r for r in rows if r["way"] == "ddp")
    print("| way | step, ms (p20 to p80) | of ddp's | KB sent | of ddp's | error |")
    print("| --- | --- | --- | --- | --- | --- |")
    for r in rows:
        p20, p50, p80 = (1e3 * r["step_s"][k] for k in ("p20", "p50", "p80"))
        share = r["step_s"]["p50"] / base["step_s"]["p50"]
        print(
            f"| {r['way']} | {p50:.0f} ({p20:.0f} to {p80:.0f}) | {share:.2f} | "
            f"{r['sent_nbytes'] / 1e3:.1f} | {r['sent_nbytes'] / base['sent_nbytes']:.3f} | "
            f"{r['error_of_first_step']:.2g} |"
        )
    if json_file is not None:
        with json_file.open("a") as file:
            for r in rows:
                file.write(json.dumps(r) + "\n")
    print(f"{rows[0]['numel']} values, {rows[0]['world_size']} ranks; every way checked")


if __name__ == "__main__":
    main()
