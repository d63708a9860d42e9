"""The all-reduce of a DLRM's dense gradients on a real network: step time and bytes.

  torchrun --nproc-per-node 2 -m examples.bench.dense --configs configs/dense_*.yaml
  netlab --hosts 4 --rate 100mbit -- python -m examples.bench.dense --configs configs/dense*.yaml

Every rank runs this once; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which it is. The model
is the dense part of a DLRM of 26 tables of 64 columns, 13-512-256-64 and 415-512-512-256-1.
Compared are `ddp`, its own float32 all-reduce; torch's hooks `fp16` and `powersgd` (rank 16, with
error feedback and warm start); `none`, no all-reduce at all; and the `dense` of each config. They
take turns step by step, so that what else the machine does falls on all alike. Before that the
gradients of each are held against the exact mean: ranks whose bits differ, or an error above the
mean itself, are an error here, and nothing is timed.

Bytes are those that the network interface sent ($GLOO_SOCKET_IFNAME, default lo), with the headers
of TCP and what the kernel sends beside; `counted` is what trec_qcomm counts. Rank 0 prints a table
and appends a record a configuration to --out.
"""

from __future__ import annotations

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
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from tqdm import trange

from examples.bench.command import build_parser, positive
from examples.bench.tables import markdown
from trec_qcomm import compress_ddp
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord, Environment

PLAIN = ("none", "ddp", "fp16", "powersgd")
POWERSGD_RANK, POWERSGD_START = 16, 2  # the least that the hook takes; float32 before it
ONE_BUCKET_MB = 25
BOTTOM, TOP = (13, 512, 256, 64), (415, 512, 512, 256, 1)
LARGEST_ERROR = 1.0  # relative to the mean's norm; all zeros would have it


@dataclass
class Configuration:
    """A model with one kind of all-reduce.

    Args:
        name: name in the table.
        ddp: the model.
        compressed: what compress_ddp gave; None of others.
        config: YAML text of its config; None of others.
        seconds, nbytes: seconds of each step, and bytes that this host sent in it.
    """

    name: str
    ddp: DistributedDataParallel
    compressed: Any = None
    config: str | None = None
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


def make(name: str) -> Configuration:
    """Return the configuration of a plain name, or of the config in that file."""
    # The order of the hook's all-reduces may differ between ranks where there are several buckets.
    bucket_cap_mb = ONE_BUCKET_MB if name == "powersgd" else None
    ddp = DistributedDataParallel(Dense(), bucket_cap_mb=bucket_cap_mb)
    if name == "fp16":
        ddp.register_comm_hook(None, fp16_compress_hook)
    if name == "powersgd":
        state = PowerSGDState(
            dist.new_group(),
            matrix_approximation_rank=POWERSGD_RANK,
            start_powerSGD_iter=POWERSGD_START,
        )
        ddp.register_comm_hook(state, powerSGD_hook)
    if name in PLAIN:
        return Configuration(name, ddp)
    return Configuration(Path(name).stem, ddp, compress_ddp(ddp, name), Path(name).read_text())


def batch(size: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(size, n, generator=generator) for n in (BOTTOM[0], 351))  # type: ignore[return-value]


def backward(configuration: Configuration, data: tuple[Tensor, Tensor]) -> Tensor:
    """Run one forward and backward; return the gradients, [E]."""
    configuration.ddp.zero_grad()
    if configuration.name == "none":
        with configuration.ddp.no_sync():
            configuration.ddp(*data).backward()
    else:
        configuration.ddp(*data).backward()
    return torch.cat([p.grad.flatten() for p in configuration.ddp.parameters()])


def check(configuration: Configuration, size: int) -> float:
    """Return the error of one step's gradients over the norm of their exact mean.

    Raises: RuntimeError: ranks have different gradients, or the error is too large.
    """
    data = batch(size, dist.get_rank())
    exact = backward(Configuration("none", configuration.ddp), data).double()
    dist.all_reduce(exact)
    exact /= dist.get_world_size()
    if configuration.name == "powersgd":
        for _ in range(POWERSGD_START):
            backward(configuration, data)
    gradients = backward(configuration, data)
    if configuration.name == "none":
        return 0.0
    first = gradients.clone()
    dist.broadcast(first, 0)
    error = float((gradients.double() - exact).norm() / exact.norm())
    if not torch.equal(first, gradients) or not error < LARGEST_ERROR:
        raise RuntimeError(
            f"{configuration.name}: ranks differ, or an error of {error:.3g} of the mean"
        )
    return error


def sent_nbytes(interface: str) -> int:
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


def measure(
    configurations: Sequence[Configuration], size: int, num_steps: int, interface: str
) -> None:
    """Run the steps of all configurations in turn."""
    quiet = dist.get_rank() != 0
    for step in trange(num_steps, desc="steps of every configuration", disable=quiet):
        data = batch(size, 1000 * (step + 1) + dist.get_rank())
        for configuration in configurations:
            dist.barrier()
            before, begin = sent_nbytes(interface), time.perf_counter()
            backward(configuration, data)
            configuration.seconds.append(time.perf_counter() - begin)
            configuration.nbytes.append(sent_nbytes(interface) - before)


def record_of(
    configuration: Configuration, error: float, num_steps: int, batch_size: int
) -> BenchRecord:
    """Return the record of a configuration, with the slowest rank's time. Collective."""
    times = torch.tensor(configuration.seconds, dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    figures = {f"step_s_p{q}": float(times.quantile(q / 100)) for q in (20, 50, 80)}
    figures |= {"sent_nbytes": statistics.median(configuration.nbytes), "error": error}
    if configuration.compressed is not None:
        traffic = records.traffic_of(configuration.compressed.stats(), num_steps + 1)
        figures["counted_nbytes"] = traffic["dense"].wire_nbytes
    numel = sum(p.numel() for p in configuration.ddp.parameters())
    return BenchRecord(
        configuration=configuration.name,
        config=configuration.config,
        bench="dense",
        setup={"batch_size": batch_size, "steps": num_steps, "numel": numel},
        environment=Environment.current(),
        case={"world_size": dist.get_world_size()},
        figures=figures,
    )


def main() -> None:
    parser = build_parser(__doc__)
    add = parser.add_argument
    add("--configs", nargs="*", default=[], help="YAML files of trec_qcomm with `dense`")
    add("--batch-size", type=positive, default=256, help="samples a rank (default 256)")
    add("--steps", type=positive, default=20, help="steps of every configuration (default 20)")
    arguments = parser.parse_args()
    interface = os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    configurations = [make(name) for name in (*PLAIN, *arguments.configs)]
    errors = [check(configuration, arguments.batch_size) for configuration in configurations]
    measure(configurations, arguments.batch_size, arguments.steps, interface)
    pairs = zip(configurations, errors, strict=True)
    made = [record_of(c, error, arguments.steps, arguments.batch_size) for c, error in pairs]
    if dist.get_rank() == 0:
        print(format_table(made))
        if arguments.out is not None:
            records.append(arguments.out, *made)
        numel, ranks = made[0].setup["numel"], made[0].case["world_size"]
        print(f"{numel} values, {ranks} ranks; gradients of every configuration checked")
    dist.destroy_process_group()


def format_table(made: Sequence[BenchRecord]) -> str:
    """Return a line a configuration; shares are those of ddp."""
    base, rows = next(r.figures for r in made if r.configuration == "ddp"), []
    for name, figures in ((record.configuration, record.figures) for record in made):
        p20, p50, p80 = (1e3 * figures[f"step_s_p{q}"] for q in (20, 50, 80))
        time_share, byte_share = (figures[n] / base[n] for n in ("step_s_p50", "sent_nbytes"))
        sent = f"{figures['sent_nbytes'] / 1e3:.1f}"
        cells = [f"{p50:.0f} ({p20:.0f} to {p80:.0f})", f"{time_share:.2f}", sent]
        rows.append([name, *cells, f"{byte_share:.3f}", f"{figures['error']:.2g}"])
    head = ["configuration", "step, ms (p20 to p80)", "of ddp's", "KB sent", "of ddp's", "error"]
    return markdown(head, rows)


if __name__ == "__main__":
    main()
