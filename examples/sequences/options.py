"""The command line of train.py, its checks, and which of its options decide what is trained.

Knows: every option and what argparse alone cannot refuse. Does not know: ranks, models that train.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from torchrec.distributed.fbgemm_qcomm_codec import CommType

from examples.sequences.data import PLACES, Sequences, generate, read_movielens
from examples.sequences.model import SHARDINGS, TABLE
from trec_qcomm import load_config, presets
from trec_qcomm.config import preset_path
from trec_qcomm.lab import records

STOCK = {"stock": None, "stock_fp16": CommType.FP16, "stock_int8": CommType.INT8}
# The options that decide what is trained, and how: two runs are compared only where they agree.
SETUP = (
    "data", "users", "items", "plan", "batch_size", "length", "negatives", "dim", "blocks", "heads",
    "lr", "dense_lr", "init_scale", "epochs", "steps", "part", "pipeline",
)  # fmt: skip
NOT_OF_A_CHECKPOINT = ("epochs", "steps", "part", "pipeline")
PIPELINES = ("none", "sparse_dist")


def setup_of(options: argparse.Namespace) -> dict[str, records.Scalar]:
    """Return the options that must be equal for two runs to be compared, without unset ones."""
    setup = {name: getattr(options, name) for name in SETUP}
    setup["data"] = options.data.name if options.data else "synthetic"
    setup["pipeline"] = None if options.pipeline == "none" else options.pipeline
    return {name: value for name, value in setup.items() if value is not None}


def check_options(options: argparse.Namespace) -> None:
    """Raise ValueError, naming the option, for what argparse alone cannot refuse."""
    for name, value in vars(options).items():
        if type(value) in (int, float) and name != "seed" and value <= 0:
            raise ValueError(f"{name} {value}: must be positive")
    if options.dim % options.heads:
        raise ValueError(f"heads {options.heads}: does not divide dim {options.dim}")
    folder = options.checkpoint_dir
    if options.resume and folder is None:
        raise ValueError("resume needs checkpoint_dir")
    if folder is not None and bool(checkpoints(folder)) != options.resume:
        told = "no checkpoint to resume from"
        if not options.resume:
            told = "a training is here; --resume it or take another"
        raise ValueError(f"checkpoint_dir {folder}: {told}")
    if options.config not in STOCK:
        if not Path(options.config).is_file():
            names = ", ".join((*STOCK, *presets()))
            raise ValueError(f"config {options.config}: neither a file nor one of {names}")
        load_config(options.config).check_patterns([TABLE])  # errors name file and field


def checkpoints(directory: Path) -> list[Path]:
    """Return the folders of checkpoints that are whole, in the order of their steps."""
    return sorted(path.parent for path in directory.glob("step_*/.metadata"))


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


def build_parser(description: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of train.py; accuracy.py hands it the options that it does not know."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.sequences.train",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_run_options(parser.add_argument_group("run").add_argument)
    _add_model_options(parser.add_argument_group("data, model and optimizers").add_argument)
    return parser


def _add_run_options(add: Any) -> None:
    add("--config", type=_config, required=True,
        help="a trec_qcomm YAML file, or the name of one that ships, such as best; or "
        f"{', '.join(STOCK)}: without the plugin")  # fmt: skip
    add("--plan", choices=SHARDINGS, default="row_wise", help="default row_wise")
    add("--pipeline", choices=PIPELINES, default="none",
        help="TorchRec's train pipeline: sparse_dist sends the next ids while this batch "
        "trains (default none)")  # fmt: skip
    add("--ranks", type=int, default=2, help="processes to start (default 2)")
    add("--part", choices=PLACES, default="test", help="what is scored (default test)")
    add("--seed", type=int, default=0, help="seed of weights, batches and synthetic users")
    add("--out", type=Path, default=Path("runs"), help="folder of the records (default runs)")
    add("--name", help="file in --out (default: config, plan and seed)")
    add("--checkpoint-dir", type=Path, help="a folder that all ranks see")
    add("--resume", action="store_true", help="from the last checkpoint in the folder")
    add("--timeout", type=float, default=86400.0, help="seconds until a lost rank is an error")


def _add_model_options(add: Any) -> None:
    add("--data", type=Path, help="ratings.dat or ratings.csv; default: synthetic")
    add("--users", type=int, default=4000, help="number of synthetic users (default 4000)")
    add("--items", type=int, default=2000, help="number of synthetic items (default 2000)")
    add("--batch-size", type=int, default=32, help="users a rank (default 32)")
    add("--length", type=int, default=50, help="last items that are looked at (default 50)")
    add("--negatives", type=int, default=4, help="random items a user, for its batch (default 4)")
    add("--epochs", type=int, default=5, help="default 5")
    add("--steps", type=int, help="instead of --epochs")
    add("--dim", type=int, default=32, help="columns of all tables (default 32)")
    add("--blocks", type=int, default=2, help="default 2")
    add("--heads", type=int, default=1, help="of the attention (default 1)")
    add("--lr", type=float, default=0.1, help="learning rate of the items (default 0.1)")
    add("--dense-lr", type=float, default=0.003, help="default 0.003")
    add("--init-scale", type=float, default=0.05, help="items start uniform in +- this")


def _config(text: str) -> str:
    """Return the path of a config that ships; what else is named stays as it is."""
    return str(preset_path(text)) if text in presets() and not Path(text).is_file() else text
