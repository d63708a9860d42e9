"""Trains SASRec on sequences of items with trec_qcomm, or with plain TorchRec, and scores it.

  python -m examples.sequences.train --config best                 synthetic users, 2 ranks
  python -m examples.sequences.train --config stock                without the plugin
  python -m examples.sequences.train --config best --data ml-1m/ratings.dat --epochs 20 --dim 64
  python -m examples.sequences.train --config my.yaml --plan table_wise --ranks 4
  torchrun --nproc-per-node 2 -m examples.sequences.train --config stock

Run it in the repository's root. The test is each user's last item, ranked among all items that the
user has not seen. A run is a record in --out, which python -m trec_qcomm.report draws. Where RANK
is set (torchrun) this process is that rank; else it starts --ranks processes itself.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.fbgemm_qcomm_codec import (
    CommType,
    QCommsConfig,
    get_qcomm_codecs_registry,
)
from tqdm import tqdm

from examples.sequences.data import PLACES, Batches, HeldOutBatches, Sequences, read_movielens
from examples.sequences.metrics import metrics_of, ranks_of
from examples.sequences.model import (
    SHARDINGS,
    TABLE,
    ModelConfig,
    build_optimizer,
    shard,
    stock_arguments,
)
from examples.sequences.synthetic import generate
from trec_qcomm import QComm, load_config, presets, records
from trec_qcomm.config import preset_path
from trec_qcomm.testing import run_ranks

STOCK = {"stock": None, "stock_fp16": CommType.FP16, "stock_int8": CommType.INT8}
# The options that decide what is trained, and how: two runs are compared only where they agree.
SETUP = (
    "data", "users", "items", "plan", "batch_size", "length", "negatives", "dim", "blocks", "heads",
    "lr", "dense_lr", "init_scale", "epochs", "steps", "part",
)  # fmt: skip
NOT_OF_A_CHECKPOINT = ("epochs", "steps", "part")


def main() -> int:
    """Train as the command line says; the exit status is 2 for options that are wrong."""
    parser = build_parser()
    options = parser.parse_args()
    try:
        check_options(options)
        load_sequences(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if "RANK" in os.environ:
        device = "cpu:gloo" if options.device == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(device)
        run(options)
        dist.destroy_process_group()
    else:
        run_ranks(run, options.ranks, options, timeout_s=options.timeout)
    return 0


def run(options: argparse.Namespace) -> None:
    """Train, score and record, on this rank. Collective."""
    silence_start()
    sequences = load_sequences(options)
    qcomm = None if options.config in STOCK else QComm.from_yaml(options.config)
    trainer = Trainer.build(options, sequences, qcomm)
    if options.resume:
        trainer.resume(options.checkpoint_dir)
    trainer.train(show_progress=dist.get_rank() == 0)
    traffic = mean_traffic(trainer)
    losses, metrics = trainer.mean_losses(), trainer.score()
    exact = {} if qcomm is None else trainer.score(exact=True)
    if dist.get_rank() == 0:
        path = options.out / f"{name_of(options)}.jsonl"
        record = records.TrainingRecord.from_qcomm(
            qcomm,
            name=Path(options.config).stem,
            losses=losses,
            metrics=metrics,
            metrics_exact=exact,
            setup=setup_of(options),
            seed=options.seed,
            progressive_logloss=float(np.mean(losses)) if losses else None,
            step_s=records.Percentiles(**percentiles(trainer.step_s)) if losses else None,
            steps=trainer.step,
            shardings={options.plan: 1},
            **({} if traffic is None else {"traffic": traffic}),
        )
        records.append(path, record)
        print_result(record, popularity_metrics(options, sequences), path)


@dataclass
class Trainer:
    """A sharded model on this rank, and how far it has come. `qcomm` is None for plain TorchRec."""

    options: argparse.Namespace
    dmp: DistributedModelParallel
    optimizer: Any
    qcomm: QComm | None
    device: torch.device
    batches: Batches
    tests: HeldOutBatches
    step: int = 0  # steps done
    losses: list[float] = field(default_factory=list)  # since the start or the resume
    step_s: list[float] = field(default_factory=list)

    @classmethod
    def build(
        cls, options: argparse.Namespace, sequences: Sequences, qcomm: QComm | None
    ) -> Trainer:
        """Shard the model over the ranks of the process group. Collective."""
        values = vars(options)
        config = ModelConfig(**{f.name: values[f.name] for f in fields(ModelConfig)})
        device = torch.device(options.device)
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
            torch.cuda.set_device(device)
        if qcomm is None:
            arguments = stock_arguments(_stock_codecs(options.config), config.fused_params)
        else:
            arguments = qcomm.dmp_arguments(fused_params=config.fused_params)
        dmp = shard(config, sequences.num_items, options.plan, device, arguments)
        ranks = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
        sizes = {"batch_size": options.batch_size, "length": options.length}
        random = {"negatives": options.negatives, "seed": options.seed}
        batches = Batches(sequences, **sizes, **random, **ranks)
        tests = HeldOutBatches(sequences, **sizes, part=options.part, **ranks)
        return cls(options, dmp, build_optimizer(dmp, config), qcomm, device, batches, tests)

    def train(self, *, show_progress: bool = False) -> None:
        """Take the steps that are left, with a checkpoint after each epoch. Collective."""
        num_steps = self.options.steps or self.options.epochs * len(self.batches)
        steps = range(self.step, num_steps)
        bar = tqdm(
            steps, initial=self.step, total=num_steps, unit="step", disable=not show_progress
        )
        for step in bar:
            begin = time.perf_counter()
            features = self.batches[step].to(self.device)
            self.optimizer.zero_grad()
            loss = self.dmp(features)
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            self.step_s.append(time.perf_counter() - begin)
            self.step += 1
            if step % 20 == 0:
                bar.set_postfix_str(f"loss {self.losses[-1]:.4f}")
            is_due = self.step % len(self.batches) == 0 or self.step == num_steps
            if self.options.checkpoint_dir and is_due:
                folder = self.options.checkpoint_dir / f"step_{self.step:09d}"
                dcp.save(self.state(), checkpoint_id=folder)

    @torch.no_grad()
    def score(self, *, exact: bool = False) -> dict[str, float]:
        """Return the metrics of all users of all ranks. Collective.

        Args: exact: whether rows travel as float32, whatever the codecs.
        """
        self.dmp.eval()
        ranks, losses = [], []
        with self.qcomm.bypass() if self.qcomm and exact else nullcontext():
            for index in range(len(self.tests)):
                test = self.tests[index]
                scores = self.dmp(test.features.to(self.device)).cpu()
                right = scores.gather(1, test.targets[:, None])[:, 0]
                ranks.append(ranks_of(scores, test.targets, test.seen))
                losses.append(scores.logsumexp(dim=1) - right)
        self.dmp.train()
        gathered = gather((torch.cat(ranks).numpy(), torch.cat(losses).numpy()))
        columns = zip(*gathered, strict=True)
        return metrics_of(*(torch.from_numpy(np.concatenate(column)) for column in columns))

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint holds."""
        what = {k: v for k, v in setup_of(self.options).items() if k not in NOT_OF_A_CHECKPOINT}
        state = {"model": self.dmp, "optimizer": self.optimizer, "trec_qcomm": self.qcomm}
        state |= {"step": torch.tensor(self.step), "setup": str(what | {"seed": self.options.seed})}
        return {name: value for name, value in state.items() if value is not None}

    def resume(self, directory: Path) -> None:
        """Continue from the last checkpoint that is whole. Collective.

        Raises: ValueError: there is none, or it is of another training.
        """
        whole = sorted(path.parent for path in directory.glob("step_*/.metadata"))
        if not whole:
            raise ValueError(f"checkpoint_dir {directory}: no checkpoint to resume from")
        state = self.state()
        expected = state["setup"]
        dcp.load(state, checkpoint_id=whole[-1])
        if state["setup"] != expected:
            raise ValueError(f"{whole[-1]}: of {state['setup']}; resumed with {expected}")
        self.step = int(state["step"])

    def mean_losses(self) -> list[float]:
        """Return the loss of each step, the mean over ranks. Collective."""
        by_rank = gather(self.losses)
        return [sum(losses) / len(losses) for losses in zip(*by_rank, strict=True)]


def _stock_codecs(config: str) -> dict[str, Any] | None:
    precision = STOCK[config]
    if precision is None:
        return None
    comms = QCommsConfig(forward_precision=precision, backward_precision=precision)
    codecs: dict[str, Any] = get_qcomm_codecs_registry(comms)
    return codecs


def gather(value: Any) -> list[Any]:
    """Return the value of every rank, in rank order. Collective."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def mean_traffic(trainer: Trainer) -> records.TrafficByKind | None:
    """Return the bytes that a rank sends in a step, the mean over ranks. Collective."""
    if trainer.qcomm is None or not trainer.losses:
        return None
    by_rank = gather(records.traffic_of(trainer.qcomm.stats(), len(trainer.losses)))
    names = ("raw_nbytes", "distinct_nbytes", "wire_nbytes")
    means = {}
    for kind in by_rank[0]:
        counted = [vars(traffic[kind]) for traffic in by_rank]
        known = [name for name in names if all(one[name] is not None for one in counted)]
        sums = {name: sum(one[name] for one in counted) / len(counted) for name in known}
        means[kind] = records.TrafficBytes(**sums)
    return means


def popularity_metrics(options: argparse.Namespace, sequences: Sequences) -> dict[str, float]:
    """Return what the most popular items reach, the same for all users."""
    scores = torch.from_numpy(sequences.popularity()).double()
    tests = HeldOutBatches(sequences, options.batch_size, options.length, options.part, 0, 1)
    ranks = [
        ranks_of(scores.expand(len(test.targets), -1), test.targets, test.seen)
        for test in (tests[index] for index in range(len(tests)))
    ]
    joined = torch.cat(ranks)
    return metrics_of(joined, torch.zeros(len(joined)))


def print_result(record: records.TrainingRecord, popularity: dict[str, float], path: Path) -> None:
    """Print bytes by kind of traffic, and a last line with the test."""
    for kind, traffic in (record.traffic or {}).items():
        if traffic.wire_nbytes:
            raw = traffic.raw_nbytes or traffic.distinct_nbytes or 0
            sent = f"{raw / 1e3:.1f} -> {traffic.wire_nbytes / 1e3:.1f} KB a step"
            print(f"  {kind:<20} {sent}")
    metrics, names = record.metrics, ("ndcg_10", "hit_rate_10")
    shown = ", ".join(f"{n} {metrics[n]:.4f} (popularity {popularity[n]:.4f})" for n in names)
    users, steps = int(metrics["num_users"]), record.steps
    print(f"{record.configuration}: {shown} of {users} users after {steps} steps; {path}")


def silence_start() -> None:
    """Hide what torch says about its deprecated names because TorchRec uses them."""
    for name in ("torch.fx", *(f"torchrec.distributed.{m}" for m in ("planner", "comm", "utils"))):
        logging.getLogger(name).setLevel("ERROR")
    for message in ("`broadcast_buffers` is deprecated", "Please use DTensor instead"):
        warnings.filterwarnings("ignore", message, FutureWarning)


def percentiles(seconds: list[float]) -> dict[str, float]:
    timed = seconds[10:] or seconds
    return {f"p{q}": float(np.percentile(timed, q)) for q in (20, 50, 80)}


def load_sequences(options: argparse.Namespace) -> Sequences:
    """Return the sequences of --data, or synthetic ones.

    Raises: ValueError: fewer users than a global batch.
    """
    if options.data is None:
        sequences = generate(options.users, options.items, seed=options.seed)
    else:
        sequences = read_movielens(options.data)
    ranks = int(os.environ.get("WORLD_SIZE", options.ranks))
    if sequences.num_users < options.batch_size * ranks:
        size = f"{ranks} x {options.batch_size}"
        raise ValueError(f"batch_size: {sequences.num_users} users are less than one of {size}")
    return sequences


def setup_of(options: argparse.Namespace) -> dict[str, records.Scalar]:
    """Return the options that must be equal for two runs to be compared, without unset ones."""
    setup = {name: getattr(options, name) for name in SETUP}
    setup["data"] = options.data.name if options.data else "synthetic"
    return {name: value for name, value in setup.items() if value is not None}


def name_of(options: argparse.Namespace) -> str:
    return options.name or f"{Path(options.config).stem}-{options.plan}-seed{options.seed}"


def check_options(options: argparse.Namespace) -> None:
    """Raise ValueError, naming the option, for what argparse alone cannot refuse."""
    for name in ("users", "items", "ranks", "batch_size", "length", "negatives", "dim", "blocks",
                 "heads", "epochs", "steps", "timeout"):  # fmt: skip
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} {value}: must be positive")
    if options.dim % options.heads:
        raise ValueError(f"heads {options.heads}: does not divide dim {options.dim}")
    if options.resume and options.checkpoint_dir is None:
        raise ValueError("resume needs checkpoint_dir")
    if options.config not in STOCK:
        if not Path(options.config).is_file():
            names = ", ".join((*STOCK, *presets()))
            raise ValueError(f"config {options.config}: neither a file nor one of {names}")
        load_config(options.config).check_patterns([TABLE])  # errors name file and field


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of this script; accuracy.py hands it the options that it does not know."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.sequences.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_run_options(parser.add_argument_group("run").add_argument)
    _add_model_options(parser.add_argument_group("data, model and optimizers").add_argument)
    return parser


def _add_run_options(add: Any) -> None:
    add(
        "--config",
        type=_config,
        required=True,
        help="a trec_qcomm YAML file, or the name of one that ships, such as best; or "
        f"{', '.join(STOCK)}: without the plugin",
    )
    add("--plan", choices=SHARDINGS, default="row_wise", help="default row_wise")
    add("--ranks", type=int, default=2, help="processes to start (default 2)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="cuda needs torchrun; default cpu")
    add("--part", choices=PLACES, default="test", help="what is scored (default test)")
    add("--seed", type=int, default=0, help="seed of weights, batches and synthetic users")
    add("--out", type=Path, default=Path("runs"), help="folder of the records (default runs)")
    add("--name", default=None, help="file in --out (default: config, plan and seed)")
    add("--checkpoint-dir", type=Path, default=None, help="a folder that all ranks see")
    add("--resume", action="store_true", help="from the last checkpoint in the folder")
    add("--timeout", type=float, default=86400.0, help="seconds until a lost rank is an error")


def _add_model_options(add: Any) -> None:
    add("--data", type=Path, default=None, help="ratings.dat or ratings.csv; default: synthetic")
    add("--users", type=int, default=4000, help="number of synthetic users (default 4000)")
    add("--items", type=int, default=2000, help="number of synthetic items (default 2000)")
    add("--batch-size", type=int, default=32, help="users a rank (default 32)")
    add("--length", type=int, default=50, help="last items that are looked at (default 50)")
    add("--negatives", type=int, default=4, help="random items a user, for its batch (default 4)")
    add("--epochs", type=int, default=5, help="default 5")
    add("--steps", type=int, default=None, help="instead of --epochs")
    add("--dim", type=int, default=32, help="columns of all tables (default 32)")
    add("--blocks", type=int, default=2, help="default 2")
    add("--heads", type=int, default=1, help="of the attention (default 1)")
    add("--lr", type=float, default=0.1, help="learning rate of the items (default 0.1)")
    add("--dense-lr", type=float, default=0.003, help="default 0.003")
    add("--init-scale", type=float, default=0.05, help="items start uniform in +- this")


def _config(text: str) -> str:
    """Return the path of a config that ships; what else is named stays as it is."""
    return str(preset_path(text)) if text in presets() and not Path(text).is_file() else text


if __name__ == "__main__":
    sys.exit(main())
