"""The command line of train.py, its checks, and which of its options decide what is trained.

Knows: every option and what argparse alone cannot refuse. Does not know: ranks, records.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from data.convert import check_source
from data.endless import ENDLESS
from model import DENSE_OPTIMIZERS, EMBEDDING_OPTIMIZERS, MODELS, ModelConfig
from plans import load_plan, plan_names
from stock import NAMES as STOCK_NAMES
from stock import POWERSGD
from torchrec.distributed.comm import get_local_size
from trainer import PIPELINES, choose_pipeline

from trec_qcomm.config import load_config, preset_path, presets

# The options that decide what is trained, and how: two runs are compared only where they agree. A
# checkpoint is resumed only by a run that agrees in all but the last four.
SETUP = (
    "plan", "data", "rows", "min_count", "hash_buckets", "num_embeddings", "batch_size",
    "embedding_dim", "dense_arch", "over_arch", "embedding_optimizer", "dense_optimizer", "lr",
    "dense_lr", "init_scale", "multi_hot", "model", "scale", "epochs", "steps", "device",
    "pipeline",
)  # fmt: skip
NOT_OF_A_CHECKPOINT = ("epochs", "steps", "device", "pipeline")
# Options that records have only where they are not these, as older records do not have them.
_LATER = {"pipeline": "none", "model": "dlrm"}
_SCALED = ("embedding_dim", "dense_arch", "over_arch")
_POSITIVE = (
    "rows", "min_count", "hash_buckets", "batch_size", "epochs", "steps", "embedding_dim", "ranks",
    "ranks_per_node", "checkpoint_every", "delta_every", "log_every", "timeout",
)  # fmt: skip


def build_parser(description: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of train.py; other scripts hand it the options that they do not know."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _add_run_options(parser.add_argument_group("run"))
    _add_data_options(parser.add_argument_group("data"))
    _add_model_options(parser.add_argument_group("model and optimizers"))
    _add_checkpoint_options(parser.add_argument_group("checkpoints"))
    return parser


def setup_of(options: argparse.Namespace) -> dict[str, str | int | float | bool]:
    """Return the options that must be equal for two runs to be compared, without unset ones.

    The ranks a node count only where the plan depends on them. The seed and the number of ranks are
    fields of a record.
    """
    setup = {name: getattr(options, name) for name in SETUP}
    setup |= {name: getattr(ModelConfig.from_options(options), name) for name in _SCALED}
    setup["pipeline"] = choose_pipeline(options.pipeline, options.device)
    setup["data"] = options.data.name if options.data else None
    for name in ("dense_arch", "over_arch", "num_embeddings"):
        if setup[name] is not None:
            setup[name] = ",".join(map(str, setup[name]))
    plan = load_plan(options.plan)
    setup["plan"] = options.plan if options.plan in plan_names() else str(plan)
    if plan.depends_on_nodes:
        world_size = int(os.environ.get("WORLD_SIZE", options.ranks))
        setup["ranks_per_node"] = options.ranks_per_node or get_local_size(world_size)
    return {name: v for name, v in setup.items() if v is not None and v != _LATER.get(name)}


def is_stock(config: str) -> bool:
    """Return whether this names TorchRec without the plugin."""
    return config in STOCK_NAMES


def check_options(options: argparse.Namespace) -> None:
    """Raise ValueError, naming the option, for what argparse alone cannot refuse."""
    for name in _POSITIVE:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} {value}: must be positive")
    _check_config(options)
    _check_model(options)
    if options.hash_buckets is not None and options.min_count is not None:
        raise ValueError("hash_buckets and min_count exclude one another")
    choice = (options.min_count, options.hash_buckets, options.num_embeddings)
    if options.data == ENDLESS:
        if any(choice):
            raise ValueError("data endless: min_count, hash_buckets, num_embeddings: it has ids")
    elif options.data is not None:
        check_source(options.data, *choice)
    elif options.num_embeddings is not None:
        raise ValueError("num_embeddings needs data")
    if options.dump_rows is not None and options.dump_rows.is_dir():
        raise ValueError(f"dump_rows {options.dump_rows}: is a folder; expected a file to write")
    load_plan(options.plan)
    world_size = int(os.environ.get("WORLD_SIZE", options.ranks))
    if options.ranks_per_node is not None and world_size % options.ranks_per_node:
        raise ValueError(f"ranks_per_node {options.ranks_per_node}: {world_size} ranks do not fill")


def _check_config(options: argparse.Namespace) -> None:
    if options.allow_changed_config and not options.resume:
        raise ValueError("allow_changed_config needs resume")
    for name in ("checkpoint_every", "resume"):
        if options.checkpoint_dir is None and getattr(options, name):
            raise ValueError(f"{name}: needs checkpoint_dir")
    if options.checkpoint_dir is not None and options.config == POWERSGD:
        raise ValueError(f"checkpoint_dir: {POWERSGD} has state that no checkpoint would hold")
    if is_stock(options.config):
        return
    if not Path(options.config).is_file():
        names = ", ".join((*STOCK_NAMES, *presets()))
        raise ValueError(f"config {options.config}: neither a file nor one of {names}")
    load_config(options.config)  # whose errors name file and field


def _check_model(options: argparse.Namespace) -> None:
    if options.multi_hot is not None and not 0 <= options.multi_hot <= 1:
        raise ValueError(f"multi_hot {options.multi_hot}: expected a share from 0 to 1")
    if options.scale is None:
        return
    if options.model != "dcn":
        raise ValueError("scale: only for --model dcn")
    if not 0 < options.scale <= 1:
        raise ValueError(f"scale {options.scale}: expected a number above 0, at most 1")
    for name in _SCALED:
        if getattr(options, name) != build_parser().get_default(name):
            raise ValueError(f"{name}: scale sets it; give one of them")


def _add_run_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--config", type=config_path, required=True,
        help="a trec_qcomm YAML file, or the name of one that ships, such as best; or stock, "
        "stock_fp16, stock_int8, stock_powersgd: without the plugin")  # fmt: skip
    add("--plan", default="table_wise", help=f"{', '.join(plan_names())}, or a YAML file like them")
    add("--ranks", type=int, default=2, help="processes to start (default 2)")
    add("--ranks-per-node", type=int,
        help="ranks that two-level plans take for a node (default: all of a machine)")  # fmt: skip
    add("--pipeline", choices=PIPELINES,
        help="TorchRec's train pipeline: sparse_dist sends the next ids while this batch is "
        "trained; losses are equal. Default: none on cpu, where all runs on the same cores; "
        "sparse_dist on cuda")  # fmt: skip
    add("--device", choices=("cpu", "cuda"), default="cpu", help="default cpu")
    add("--eval-codec", choices=("on", "off", "both"), default="on", help="score with the codec on")
    add("--seed", type=int, default=0, help="seed of the weights and the synthetic rows")
    add("--out", type=Path, default=Path("runs"), help="folder of the JSON lines (default runs)")
    add("--name", help="file in --out (default: config, plan and seed)")
    add("--tensorboard", type=Path, nargs="?", const=Path("runs/tensorboard"), metavar="FOLDER",
        help="scalars each --log-every steps, in FOLDER/NAME (default runs/tensorboard); needs the "
        "package tensorboard")  # fmt: skip
    add("--log-every", type=int, default=50, metavar="STEPS", help="default 50")
    add("--dump-rows", type=Path, metavar="FILE.pt",
        help="rows and gradients of the trained model, to choose codecs by")  # fmt: skip
    add("--timeout", type=float, default=300.0, help="seconds until a lost rank is an error")


def _add_data_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--data", type=Path,
        help="a folder of preprocess.py or of TorchRec's .npy files, or a TSV; endless: rows made "
        "in the image of Criteo's, as many as --rows; default: few synthetic ones")  # fmt: skip
    add("--rows", type=int, default=131_072, help="number of synthetic rows (default 131072)")
    add("--min-count", type=int, help="rarer categories become id 0 (default 2)")
    add("--hash-buckets", type=int, help="hash instead of a vocabulary")
    add("--multi-hot", type=float, nargs="?", const=1.0, metavar="SHARE",
        help="several ids of a feature, as many as MLPerf's DLRMv2 has; of a SHARE of the samples "
        "(default all, as MLPerf) the first id decides on the others, else all are drawn "
        "anew")  # fmt: skip
    add("--num-embeddings", type=_sizes, metavar="N,N,...",
        help="rows of the 26 tables, or of all, for a folder without dataset.json: ids are taken "
        "modulo these (default: as the largest ids need)")  # fmt: skip


def _add_model_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    layers = {"type": _layers, "help": "sizes of its hidden layers"}
    add("--model", choices=MODELS, default="dlrm", help="dcn: DLRM-DCNv2 (default dlrm)")
    add("--scale", type=float, metavar="0..1",
        help="dcn with all sizes of MLPerf's DLRMv2 times this: dim 128, layers of 512-256 and "
        "1024-1024-512-256, cross rank 512; tables keep the rows that the data give "
        "them")  # fmt: skip
    add("--batch-size", type=int, default=256, help="samples a rank (default 256)")
    add("--epochs", type=int, default=1, help="in the same order of rows (default 1)")
    add("--steps", type=int, help="stop after so many steps in all")
    add("--embedding-dim", type=int, default=16, help="columns of every table (default 16)")
    add("--dense-arch", default=(512, 256), metavar="512-256", **layers)
    add("--over-arch", default=(512, 512, 256), metavar="512-512-256", **layers)
    add("--embedding-optimizer", choices=EMBEDDING_OPTIMIZERS, default="rowwise_adagrad",
        help="in the embedding kernels (default rowwise_adagrad)")  # fmt: skip
    add("--dense-optimizer", choices=DENSE_OPTIMIZERS, default="adam", help="default adam")
    add("--lr", type=float, default=0.02, help="learning rate of the embeddings (default 0.02)")
    add("--dense-lr", type=float, default=0.001, help="default 0.001")
    add("--init-scale", type=float, default=0.01, help="embeddings start uniform in +- this")


def _add_checkpoint_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--checkpoint-dir", type=Path, help="a folder that all ranks see")
    add("--checkpoint-every", type=int, metavar="STEPS", help="and at the end")
    add("--deltas", type=Path, help="a folder for rows that changed, with 8 bits, for servers")
    add("--delta-every", type=int, default=100, metavar="STEPS", help="default 100")
    add("--resume", action="store_true", help="from the last one in the folder")
    add("--allow-changed-config", action="store_true",
        help="resume with another --config than the checkpoint's")  # fmt: skip


def config_path(text: str) -> str:
    """Return the path of a config that ships; what else is named stays as it is."""
    return str(preset_path(text)) if text in presets() and not Path(text).is_file() else text


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


def _layers(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split("-"))
