"""Trains a DLRM, or DCNv2, on Criteo's rows with trec_qcomm, or with plain TorchRec, and scores it.

  python examples/criteo/train.py --config configs/best.yaml     synthetic rows, 2 ranks
  python examples/criteo/train.py --config stock                 without the plugin
  python examples/criteo/train.py --config configs/int8.yaml --plan mixed
  python examples/criteo/train.py --config configs/int8.yaml --data train.txt --min-count 5
  python examples/criteo/train.py --config configs/int8.yaml --model dcn --scale 0.125 --multi-hot
  python examples/criteo/train.py --config configs/int8.yaml --tensorboard
  python examples/criteo/train.py --config stock --checkpoint-dir ckpt --checkpoint-every 100
  ... the same with --resume, after Ctrl-C
  python examples/criteo/train.py --config stock --deltas deltas      rows that changed, for servers
  torchrun --nproc-per-node 2 examples/criteo/train.py --config stock

Where RANK and WORLD_SIZE are set (torchrun, or a launcher on several hosts) this process is that
rank; else it starts --ranks processes itself. Every rank maps the data, and reads its own slices.
"""

from __future__ import annotations

import argparse
import sys

import stock
import torch
import torch.distributed as dist
from data.convert import DEFAULT_MIN_COUNT, load
from data.dataset import Batches, BatchReader, Dataset, prepare
from data.endless import ENDLESS, endless
from data.multi_hot import with_bags
from data.synthetic import generate
from model import ModelConfig, build_model, build_optimizer, init_embeddings
from options import NOT_OF_A_CHECKPOINT, build_parser, check_options, is_stock, setup_of
from plans import Place, build_plan, load_plan, plan_by_planner
from ranks import INTERRUPTED, EveryRankError, StopRequest, agreed, gather, local_rank, run_ranks
from report import Report, score, traffic_fields
from row_dump import check_pooling, dump_rows
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.comm import get_local_size
from trainer import Trainer, choose_pipeline, open_checkpoints

from trec_qcomm import DeltaExport, QComm, Rowwise


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
    sizes = gather((len(dataset.rows), dataset.num_embeddings))
    if len(set(map(str, sizes))) > 1:
        raise EveryRankError(f"ranks have different rows or tables: {sizes}")
    if options.dump_rows is not None:
        check_pooling(dataset.pooling)
    trainer = build_trainer(options, dataset.num_embeddings)
    if options.deltas is not None:
        trainer.export = DeltaExport(trainer.dmp, Rowwise(8))
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
        sent = traffic_fields(trainer)  # before it evaluates
        tests = batches_of(dataset, options, is_test=True)
        report.finish(trainer, sent, evaluate(trainer, tests, options))
        if options.dump_rows is not None:
            meta = {"config": options.config, "seed": options.seed, "steps": trainer.step}
            dump_rows(trainer, batches, options.dump_rows, meta)
    return True


def train(
    trainer: Trainer, batches: Batches, num_steps: int, options: argparse.Namespace, report: Report
) -> bool:
    """Train up to step `num_steps`; False if a signal stopped it, after the step's checkpoint.

    Signals are heeded only where there is a checkpoint directory: the ranks then agree after each
    step, by 4 bytes, whether one of them was told to stop.
    """
    stop = StopRequest() if options.checkpoint_dir else None
    stopped, pin = False, trainer.device.type == "cuda"
    with BatchReader(batches, trainer.step, num_steps, pin=pin) as feed:
        while trainer.step < num_steps and not stopped:
            trainer.train_next(feed)
            report.add_step(trainer)
            is_last = trainer.step == num_steps
            if trainer.export and (trainer.step % options.delta_every == 0 or is_last):
                report.add_export(trainer.export)
            stopped = stop is not None and stop.agreed()
            due = options.checkpoint_every and trainer.step % options.checkpoint_every == 0
            if options.checkpoint_dir and (stopped or due or is_last):
                trainer.save(options.checkpoint_dir)
    return not stopped


def evaluate(
    trainer: Trainer, tests: Batches, options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Return metrics by mode, the codec "on" or "off"; TorchRec alone has "off". Collective."""
    modes = ("on", "off") if options.eval_codec == "both" else (options.eval_codec,)
    if trainer.qcomm is None:
        modes = ("off",)
    return {mode: score(*trainer.predict(tests, exact=mode == "off")) for mode in modes}


def batches_of(dataset: Dataset, options: argparse.Namespace, *, is_test: bool = False) -> Batches:
    """Return the batches of this rank. Raises EveryRankError: too few rows to train on."""
    where = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    rows = dataset.test if is_test else dataset.train
    batches = Batches(rows, options.batch_size, drop_last=not is_test, **where)
    if not is_test and not len(batches):
        size = options.batch_size * dist.get_world_size()
        raise EveryRankError(f"{len(rows)} training rows are less than one global batch of {size}")
    return batches


def identity_of(options: argparse.Namespace) -> dict[str, str]:
    """Return what must be equal for a checkpoint to be resumed."""
    setup = setup_of(options) | {"seed": options.seed, "world_size": dist.get_world_size()}
    return {name: str(value) for name, value in setup.items() if name not in NOT_OF_A_CHECKPOINT}


def load_dataset(options: argparse.Namespace) -> Dataset:
    """Return the rows of --data, or synthetic ones; with --multi-hot, of several ids a feature."""
    choice = {"min_count": options.min_count, "hash_buckets": options.hash_buckets}
    if options.data == ENDLESS:
        dataset = endless(options.rows, seed=options.seed)
    elif options.data is not None:
        dataset = load(options.data, num_embeddings=options.num_embeddings, **choice)
    else:
        choice["min_count"] = options.min_count or DEFAULT_MIN_COUNT
        dataset = prepare(generate(options.rows, seed=options.seed), **choice)
    if options.multi_hot is None:
        return dataset
    return with_bags(dataset, fixed_share=options.multi_hot, seed=options.seed)


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
    if qcomm is None:
        arguments = stock.arguments(options.config, config.fused_params)
    else:
        arguments = qcomm.dmp_arguments(fused_params=config.fused_params)
    plan, world_size = load_plan(options.plan), dist.get_world_size()
    place = Place(world_size, get_local_size(world_size), device.type)
    if plan.cluster is None:
        sharding = build_plan(model, plan, place)
    else:
        how = {"sharders": arguments["sharders"], "batch_size": options.batch_size}
        how["pipeline"] = pipeline != "none"
        sharding = plan_by_planner(model, plan, place, qcomm=qcomm, **how)
    dmp = DistributedModelParallel(module=model, device=device, plan=sharding, **arguments)
    init_embeddings(dmp, config)
    return Trainer(dmp, build_optimizer(dmp, config), device, qcomm, pipeline)


if __name__ == "__main__":
    sys.exit(main())
