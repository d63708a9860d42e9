"""Trains a DLRM, or DCNv2, on Criteo's rows with trec_qcomm, or with plain TorchRec, and scores it.

  python examples/criteo/train.py --config configs/best.yaml     synthetic rows, 2 ranks
  python examples/criteo/train.py --config stock                 without the plugin
  python examples/criteo/train.py --config configs/int8.yaml --plan mixed
  python examples/criteo/train.py --config configs/int8.yaml --data train.txt --min-count 5
  python examples/criteo/train.py --config configs/int8.yaml --model dcn --scale 0.125 --multi-hot
  python examples/criteo/train.py --config configs/int8.yaml --tensorboard
  python examples/criteo/train.py --config stock --checkpoint-dir ckpt --checkpoint-every 100
  ... the same with --resume, after Ctrl-C
  torchrun --nproc-per-node 2 examples/criteo/train.py --config stock

Where RANK and WORLD_SIZE are set (torchrun, or a launcher on several hosts) this process is that
rank; else it starts --ranks processes itself. Every rank maps the data, and reads its own slices.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import stock
import torch
import torch.distributed as dist
from checkpoints import Saver
from data.dataset import Batches, Dataset, prepare
from data.multi_hot import with_bags
from data.source import DEFAULT_MIN_COUNT, load
from data.synthetic import generate
from failures import EveryRankError, agreed, check_equal
from loop.pipelines import choose_pipeline, keep_in_host_memory
from loop.training import evaluate, train
from model import ModelConfig, build_model, build_optimizer, init_embeddings
from options import (
    INTERRUPTED,
    NOT_OF_A_CHECKPOINT,
    build_parser,
    check_options,
    is_stock,
    setup_of,
)
from plans.files import build_plan, load_plan
from plans.planned import make_plan
from ranks import local_rank, run_ranks
from report.metrics import mean_traffic, table_records
from report.row_dump import check_pooling, dump_rows
from report.run import Report
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.types import ShardingPlan
from torchrec.models.dlrm import DLRMTrain
from trainer import PRECISIONS, Trainer, open_checkpoints

from trec_qcomm import QComm


def main() -> int:
    """Run as the command line says; the exit status is 1 after an error, 130 after Ctrl-C."""
    parser = build_parser(__doc__)
    options = parser.parse_args()
    try:
        check_options(options)
    except ValueError as error:
        parser.error(str(error))
    status = run_ranks(run, options)
    if status == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return status


def run(options: argparse.Namespace) -> bool:
    """Train and score on this rank, in an initialized process group; False if interrupted."""
    dataset = agreed(lambda: load_dataset(options))
    check_equal("rows (number, ids of each table)", (len(dataset.rows), dataset.num_embeddings))
    if options.dump_rows is not None:
        check_pooling(dataset.pooling)
    trainer = build_trainer(options, dataset.num_embeddings)
    if options.checkpoint_dir is not None:
        how = {"resume": options.resume, "allow_changed_config": options.allow_changed_config}
        open_checkpoints(trainer, options.checkpoint_dir, identity_of(options), **how)
    batches = batches_of(dataset, options)
    num_steps = min(options.epochs * len(batches), options.steps or sys.maxsize)
    if trainer.qcomm is not None:
        trainer.qcomm.reset_stats()
    with Report(options, first_step=trainer.step, num_steps=num_steps) as report:
        if not train(trainer, batches, num_steps, options, report):
            report.interrupted(trainer)
            return False
        traffic, tables = mean_traffic(trainer), table_records(trainer)  # before it evaluates
        tests = batches_of(dataset, options, is_test=True)
        report.finish(trainer, traffic, tables, evaluate(trainer, tests, options))
        if options.dump_rows is not None:
            meta = {"config": options.config, "seed": options.seed, "steps": trainer.step}
            dump_rows(trainer, batches, options.dump_rows, meta)
    return True


def batches_of(dataset: Dataset, options: argparse.Namespace, *, is_test: bool = False) -> Batches:
    """Return the batches of this rank. Raises EveryRankError: too few rows to train on."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if is_test:
        return Batches(dataset.test, options.batch_size, rank, world_size, drop_last=False)
    batches = Batches(dataset.train, options.batch_size, rank, world_size, drop_last=True)
    if not len(batches):
        rows = f"{len(dataset.train)} training rows"
        size = options.batch_size * world_size
        raise EveryRankError(f"{rows} are less than one global batch of {size}")
    return batches


def identity_of(options: argparse.Namespace) -> dict[str, str]:
    """Return what must be equal for a checkpoint to be resumed."""
    setup = setup_of(options) | {"seed": options.seed, "world_size": dist.get_world_size()}
    return {name: str(value) for name, value in setup.items() if name not in NOT_OF_A_CHECKPOINT}


def load_dataset(options: argparse.Namespace) -> Dataset:
    """Return the rows of --data, or synthetic ones; with --multi-hot, of several ids a feature."""
    dataset = _load_rows(options)
    if options.multi_hot is None:
        return dataset
    return with_bags(dataset, fixed_share=options.multi_hot, seed=options.seed)


def _load_rows(options: argparse.Namespace) -> Dataset:
    buckets = options.hash_buckets
    if options.data is not None:
        sizes = options.num_embeddings
        choice = {"min_count": options.min_count, "hash_buckets": buckets, "num_embeddings": sizes}
        return load(options.data, **choice)
    min_count = options.min_count or DEFAULT_MIN_COUNT
    rows = generate(options.rows, seed=options.seed)
    return prepare(rows, min_count=min_count, hash_buckets=buckets)


def build_trainer(options: argparse.Namespace, num_embeddings: list[int]) -> Trainer:
    """Return the sharded model of --config with weights from the seed. Collective."""
    qcomm = None if is_stock(options.config) else QComm.from_yaml(options.config)
    return shard(options, num_embeddings, qcomm)


def shard(options: argparse.Namespace, num_embeddings: list[int], qcomm: QComm | None) -> Trainer:
    """Return the sharded model with weights from the seed. Collective.

    Args: qcomm: the communication; None is TorchRec's own, as --config says.
    """
    config = ModelConfig.from_options(options)
    device = torch.device(options.device if options.device == "cpu" else f"cuda:{local_rank()}")
    model = build_model(config, num_embeddings)
    pipeline = choose_pipeline(options.pipeline, options.device)
    prefetch = {"prefetch_pipeline": True} if pipeline == "prefetch" else {}
    arguments = _codec_arguments(qcomm, options.config, config.fused_params | prefetch)
    plan = _make_plan(model, options, device.type, qcomm, arguments["sharders"])
    if prefetch:
        keep_in_host_memory(plan)
    dmp = DistributedModelParallel(module=model, device=device, plan=plan, **arguments)
    init_embeddings(dmp, config)
    return Trainer(
        dmp,
        build_optimizer(dmp, config),
        device,
        qcomm,
        pipeline=pipeline,
        precision=PRECISIONS[options.dense_precision],
        warm_up_steps=options.warmup_steps or 0,
        saver=Saver() if options.checkpoint_async else None,
    )


def _codec_arguments(
    qcomm: QComm | None, config: str, fused_params: dict[str, Any]
) -> dict[str, Any]:
    """Return all that the plugin changes in a call of DistributedModelParallel."""
    if qcomm is not None:
        return {
            "sharders": qcomm.sharders(fused_params=fused_params),
            "data_parallel_wrapper": qcomm.data_parallel_wrapper(),
        }
    return stock.arguments(config, fused_params)


def _make_plan(
    model: DLRMTrain,
    options: argparse.Namespace,
    device_type: str,
    qcomm: QComm | None,
    sharders: list[Any],
) -> ShardingPlan:
    plan, world_size = load_plan(options.plan), dist.get_world_size()
    ranks = {"world_size": world_size, "ranks_per_node": get_local_size(world_size)}
    if plan.cluster is None:
        return build_plan(model, plan, device_type=device_type, **ranks)
    network = {"sharders": sharders, "qcomm": qcomm, "batch_size": options.batch_size}
    prices = {
        "measured": plan.measured_path,
        "pipeline": choose_pipeline(options.pipeline, options.device) != "none",
    }
    return make_plan(model, plan.cluster, device_type=device_type, **network, **ranks, **prices)


if __name__ == "__main__":
    sys.exit(main())
