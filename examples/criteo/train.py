"""Trains a DLRM on Criteo's rows with trec_qcomm, or with plain TorchRec, and scores it.

  python train.py --config stock                       synthetic rows, 2 ranks on this machine
  python train.py --config ../../configs/int8.yaml --plan mixed
  python train.py --config stock --data train.txt --min-count 5
  python train.py --config stock --checkpoint-dir ckpt --checkpoint-every 100    (Ctrl-C, then)
  python train.py --config stock --checkpoint-dir ckpt --checkpoint-every 100 --resume
  python train.py --config ../../configs/int8.yaml --tensorboard    (tensorboard --logdir runs)
  torchrun --nproc-per-node 2 train.py --config stock

Where RANK and WORLD_SIZE are set (torchrun, or a launcher on several hosts) this process is that
rank; else it starts --ranks processes itself. Every rank reads the data.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import multiprocessing
import os
import signal
import socket
import sys
import warnings
from datetime import timedelta
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from data import Batches, Dataset, load_tsv, prepare
from dump import dump_rows
from loop import Trainer, open_checkpoints, train
from model import (
    DENSE_OPTIMIZERS,
    EMBEDDING_OPTIMIZERS,
    ModelConfig,
    build_dlrm,
    build_optimizer,
    init_embeddings,
)
from plans.files import build_plan, load_plan, plan_names
from plans.planned import make_plan
from report import Report, mean_traffic, score, table_records
from scalars import check_installed
from synthetic import generate
from torch.multiprocessing.spawn import ProcessExitedException, start_processes
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import (
    CommType,
    QCommsConfig,
    get_qcomm_codecs_registry,
)
from torchrec.distributed.types import ShardingPlan
from torchrec.models.dlrm import DLRMTrain

STOCK = "stock"  # TorchRec without the plugin; its own quantized comms:
STOCK_COMMS = {"stock_fp16": CommType.FP16, "stock_int8": CommType.INT8}
INTERRUPTED = 130  # exit status
# The options that make a training what it is: a resumed run must have the same.
_IDENTITY = (
    "plan", "data", "rows", "min_count", "hash_buckets", "batch_size", "embedding_dim",
    "dense_arch", "over_arch", "embedding_optimizer", "dense_optimizer", "lr", "dense_lr",
    "init_scale", "seed",
)  # fmt: skip
_POSITIVE = (
    "rows", "min_count", "hash_buckets", "batch_size", "epochs", "steps", "embedding_dim", "ranks",
    "ranks_per_node", "checkpoint_every", "log_every", "timeout",
)  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    """The command line of train.py; compare.py hands its own rest to it."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for add in (_add_run_options, _add_data_options, _add_model_options, _add_checkpoint_options):
        add(parser)
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("run").add_argument
    add(
        "--config",
        required=True,
        help="a trec_qcomm YAML file; or without it: stock (fp32), stock_fp16, stock_int8",
    )
    add("--plan", default="table_wise", help=f"{', '.join(plan_names())}, or a YAML file like them")
    add("--ranks", type=int, default=2, help="processes to start (default 2)")
    add("--ranks-per-node", type=int, default=None, help="of two-level plans (default: as started)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="default cpu")
    add("--eval-codec", choices=("on", "off", "both"), default="on", help="score with the codec on")
    add("--seed", type=int, default=0, help="of the weights and the synthetic rows")
    add("--out", type=Path, default=Path("runs"), help="folder of the JSON lines (default runs)")
    add("--name", default=None, help="of the file in --out (default: config, plan and seed)")
    add(
        "--tensorboard",
        type=Path,
        nargs="?",
        const=Path("runs/tensorboard"),
        metavar="FOLDER",
        help="scalars each --log-every steps, in FOLDER/NAME (default runs/tensorboard); needs the "
        "package tensorboard",
    )
    add("--log-every", type=int, default=50, metavar="STEPS", help="default 50")
    add("--dump-rows", type=Path, default=None, metavar="FILE.pt", help="of the trained model")
    add("--timeout", type=float, default=300.0, help="seconds until a lost rank is an error")


def _add_data_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("data").add_argument
    add("--data", type=Path, default=None, help="TSV (.gz, .xz) or a folder; default: synthetic")
    add("--rows", type=int, default=131_072, help="synthetic rows (default 131072)")
    add("--min-count", type=int, default=None, help="rarer categories become id 0 (default 2)")
    add("--hash-buckets", type=int, default=None, help="hash instead of a vocabulary")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("model and optimizers").add_argument
    add("--batch-size", type=int, default=256, help="samples a rank (default 256)")
    add("--epochs", type=int, default=1, help="in the same order of rows (default 1)")
    add("--steps", type=int, default=None, help="stop after so many steps in all")
    add("--embedding-dim", type=int, default=16, help="of every table (default 16)")
    add("--dense-arch", type=_layers, default=(512, 256), metavar="512-256", help="hidden layers")
    add(
        "--over-arch", type=_layers, default=(512, 512, 256), metavar="512-512-256", help="likewise"
    )
    add(
        "--embedding-optimizer",
        choices=EMBEDDING_OPTIMIZERS,
        default="rowwise_adagrad",
        help="in the embedding kernels (default rowwise_adagrad)",
    )
    add("--dense-optimizer", choices=DENSE_OPTIMIZERS, default="adam", help="default adam")
    add("--lr", type=float, default=0.02, help="of the embeddings (default 0.02)")
    add("--dense-lr", type=float, default=0.001, help="default 0.001")
    add("--init-scale", type=float, default=0.01, help="embeddings start uniform in +- this")


def _add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("checkpoints").add_argument
    add("--checkpoint-dir", type=Path, default=None, help="a folder that all ranks see")
    add("--checkpoint-every", type=int, default=None, metavar="STEPS", help="and at the end")
    add("--resume", action="store_true", default=False, help="from the last one in the folder")


def check_options(options: argparse.Namespace) -> None:
    """Raise ValueError, naming the option, for what argparse alone cannot refuse."""
    for name in _POSITIVE:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} {value}: must be positive")
    if options.hash_buckets is not None and options.min_count is not None:
        raise ValueError("hash_buckets and min_count exclude one another")
    if options.checkpoint_dir is None and (options.resume or options.checkpoint_every):
        raise ValueError("checkpoint_every and resume need checkpoint_dir")
    if not is_stock(options.config) and not Path(options.config).is_file():
        names = ", ".join((STOCK, *STOCK_COMMS))
        raise ValueError(f"config {options.config}: neither a file nor one of {names}")
    if options.dump_rows is not None and options.dump_rows.is_dir():
        raise ValueError(f"dump_rows {options.dump_rows}: is a folder; expected a file to write")
    if options.tensorboard is not None:
        if options.tensorboard.is_file():
            raise ValueError(f"tensorboard {options.tensorboard}: is a file; expected a folder")
        check_installed()
    load_plan(options.plan)
    world_size = int(os.environ.get("WORLD_SIZE", options.ranks))
    if options.ranks_per_node is not None and world_size % options.ranks_per_node:
        raise ValueError(f"ranks_per_node {options.ranks_per_node}: {world_size} ranks do not fill")


def is_stock(config: str) -> bool:
    """Whether this is TorchRec without the plugin."""
    return config == STOCK or config in STOCK_COMMS


def run(options: argparse.Namespace) -> bool:
    """Train and score on this rank, in an initialized process group; False if interrupted."""
    dataset = load_dataset(options)
    trainer = build_trainer(options, dataset.num_embeddings)
    if options.checkpoint_dir is not None:
        identity = {name: str(getattr(options, name)) for name in _IDENTITY}
        plan = load_plan(options.plan)
        if options.plan not in plan_names():
            identity["plan"] = str(plan)
        if plan.depends_on_nodes:
            identity["ranks_per_node"] = str(get_local_size(dist.get_world_size()))
        open_checkpoints(trainer, options.checkpoint_dir, identity, resume=options.resume)
    ranks = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    batches = Batches(dataset.train, options.batch_size, drop_last=True, **ranks)
    if not len(batches):
        raise ValueError(f"{len(dataset.train)} training rows are less than one global batch")
    num_steps = min(options.epochs * len(batches), options.steps or sys.maxsize)
    if trainer.qcomm is not None:
        trainer.qcomm.reset_stats()
    with Report(options, first_step=trainer.step, num_steps=num_steps) as report:
        finished = train(
            trainer,
            batches,
            num_steps,
            checkpoint_dir=options.checkpoint_dir,
            checkpoint_every=options.checkpoint_every,
            on_step=report.add_step,
        )
        if finished:
            traffic, tables = mean_traffic(trainer), table_records(trainer)  # before it evaluates
            tests = Batches(dataset.test, options.batch_size, drop_last=False, **ranks)
            report.finish(trainer, traffic, tables, evaluate(trainer, tests, options))
            if options.dump_rows is not None:
                meta = {"config": options.config, "seed": options.seed, "steps": trainer.step}
                dump_rows(trainer, batches, options.dump_rows, meta)
        else:
            report.interrupted(trainer)
    return finished


def evaluate(
    trainer: Trainer, tests: Batches, options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Metrics with the codec "on", "off" or both; plain TorchRec has only "off". Collective."""
    modes = ("on", "off") if options.eval_codec == "both" else (options.eval_codec,)
    if trainer.qcomm is None:
        modes = ("off",)
    return {mode: score(*trainer.predict(tests, exact=mode == "off")) for mode in modes}


def load_dataset(options: argparse.Namespace) -> Dataset:
    """The rows of --data, or synthetic ones."""
    choice = {"min_count": options.min_count or 2, "hash_buckets": options.hash_buckets}
    if options.data is not None:
        return load_tsv(options.data, **choice)
    return prepare(generate(options.rows, seed=options.seed), **choice)


def build_trainer(options: argparse.Namespace, num_embeddings: list[int]) -> Trainer:
    """The sharded model with weights from the seed. Collective."""
    names = {field.name for field in dataclasses.fields(ModelConfig)}
    config = ModelConfig(**{k: v for k, v in vars(options).items() if k in names})
    device = torch.device(options.device if options.device == "cpu" else f"cuda:{_local_rank()}")
    dlrm = build_dlrm(config, num_embeddings)
    qcomm = None if is_stock(options.config) else _load_qcomm(options.config)
    arguments = _codec_arguments(qcomm, options.config, config.fused_params)
    plan = _make_plan(dlrm, options, device.type, qcomm, arguments["sharders"])
    dmp = DistributedModelParallel(module=dlrm, device=device, plan=plan, **arguments)
    init_embeddings(dmp, config)
    return Trainer(dmp, build_optimizer(dmp, config), device, qcomm)


def _make_plan(
    dlrm: DLRMTrain, options: argparse.Namespace, device_type: str, qcomm: Any, sharders: list[Any]
) -> ShardingPlan:
    plan, world_size = load_plan(options.plan), dist.get_world_size()
    ranks = {"world_size": world_size, "ranks_per_node": get_local_size(world_size)}
    if plan.cluster is None:
        return build_plan(dlrm, plan, device_type=device_type, **ranks)
    return make_plan(
        dlrm,
        plan.cluster,
        sharders=sharders,
        qcomm=qcomm,
        batch_size=options.batch_size,
        device_type=device_type,
        **ranks,
    )


def _load_qcomm(config: str) -> Any:
    import trec_qcomm  # only here, so that `stock` runs without the plugin

    return trec_qcomm.QComm.from_yaml(config)


def _codec_arguments(qcomm: Any, config: str, fused_params: dict[str, Any]) -> dict[str, Any]:
    """All that the plugin changes in a call of DistributedModelParallel."""
    if qcomm is None:
        registry = None
        if config in STOCK_COMMS:
            both = {"forward_precision": STOCK_COMMS[config]}
            both |= {"backward_precision": STOCK_COMMS[config]}
            registry = get_qcomm_codecs_registry(QCommsConfig(**both))
        sharder = EmbeddingBagCollectionSharder(fused_params, qcomm_codecs_registry=registry)
        return {"sharders": [sharder]}
    return {
        "sharders": qcomm.sharders(fused_params=fused_params),
        "data_parallel_wrapper": qcomm.data_parallel_wrapper(),
    }


def run_rank(options: argparse.Namespace) -> bool:
    """Join the process group that the environment describes, and run."""
    os.environ.setdefault("MASTER_PORT", "29500")
    if options.ranks_per_node is not None:
        os.environ["LOCAL_WORLD_SIZE"] = str(options.ranks_per_node)  # what TorchRec calls a node
    logging.basicConfig(format="%(message)s", level="WARNING" if _rank() == 0 else "ERROR")
    silence_start()
    backend = "gloo" if options.device == "cpu" else "cpu:gloo,cuda:nccl"
    if options.device == "cuda":
        torch.cuda.set_device(_local_rank())
    dist.init_process_group(backend, timeout=timedelta(seconds=options.timeout))
    try:
        return run(options)
    finally:
        dist.destroy_process_group()


def _spawned(local_rank: int, options: argparse.Namespace, port: int) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # see spawn_ranks
    os.environ |= {
        "RANK": str(local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(options.ranks),
        "LOCAL_WORLD_SIZE": str(options.ranks),  # but for --ranks-per-node, see run_rank
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    run_rank(options)


def spawn_ranks(options: argparse.Namespace) -> bool:
    """Run --ranks processes on this machine; False if a signal came meanwhile."""
    threads = max(1, (os.cpu_count() or 1) // options.ranks)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Forked from a server that has imported what takes seconds, and computed nothing. A SIGTERM to
    # all processes must not end it, as the ends of ranks are told by it; they unblock the signal.
    modules = ["torchrec.models.dlrm", "torchrec.metrics.ne"]
    preload = modules if is_stock(options.config) else [*modules, "trec_qcomm"]
    multiprocessing.get_context("forkserver").set_forkserver_preload(preload)
    run_all: Any = start_processes  # torch leaves it untyped
    resource_tracker.ensure_running()  # or the server starts it, which unblocks signals
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    children = run_all(
        _spawned, (options, port), nprocs=options.ranks, join=False, start_method="forkserver"
    )
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signals: list[int] = []

    def pass_on(number: int, _: Any) -> None:
        signals.append(number)
        for process in children.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number if options.checkpoint_dir else signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    try:
        while not children.join():
            pass
    except ProcessExitedException:
        if not signals:
            raise
    return not signals


def main() -> int:
    """Run as the command line says; the exit status is 130 after Ctrl-C."""
    parser = build_parser()
    options = parser.parse_args()
    try:
        check_options(options)
    except ValueError as error:
        parser.error(str(error))
    ready = {"RANK", "WORLD_SIZE"} <= os.environ.keys()
    if run_rank(options) if ready else spawn_ranks(options):
        return 0
    print("interrupted", file=sys.stderr)
    return INTERRUPTED


def silence_start() -> None:
    """Hide what torch says about its deprecated names because TorchRec uses them."""
    for name in ("torch.fx", *(f"torchrec.distributed.{m}" for m in ("planner", "comm", "utils"))):
        logging.getLogger(name).setLevel("ERROR")
    for message in ("`broadcast_buffers` is deprecated", "Please use DTensor instead"):
        warnings.filterwarnings("ignore", message, FutureWarning)


def _layers(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split("-"))


def _rank() -> int:
    return int(os.environ["RANK"])


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", 0))


if __name__ == "__main__":
    sys.exit(main())
