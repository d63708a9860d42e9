"""Measures what a study's records lack: trainings, bytes, runs with equal bits.

Knows: quality.study, the emulated trainings of examples/criteo. Does not know: what records say.
A training's configs are those of the committed records, so a study goes on with just what they had.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from examples.papers.claims import EXAMPLES, Paper
from examples.papers.rules.measured import REFUSED, Values, read
from examples.papers.rules.trainings import LIMITS, trainings_of
from trec_qcomm import Config, presets, quality
from trec_qcomm.config import load_preset, read_config

sys.path[:0] = [str(EXAMPLES / "criteo")]  # whose scripts import by name

from stock import STOCK  # noqa: E402
from studies.emulation import EmulatedTrainer  # noqa: E402
from train import shard  # noqa: E402

FOUR = Path(__file__).with_name("four_shardings.yaml")
Cases = Mapping[str, Callable[[], Values]]


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Args:
        seeds: number of seeds from 0; None is the study's own number.
        jobs: number of processes that train.
        words: options of examples/criteo/train.py, which come after those of the study.
    """

    seeds: int | None = None
    jobs: int = 1
    words: Sequence[str] = ()


def run(paper: Paper, study: str, path: Path, request: Request) -> None:
    """Measure what a file of records lacks, and append it there a record at a time.

    Raises: ValueError: an option that the study cannot take, or records of another setup.
    """
    how = paper.studies[study]
    words = [*shlex.split(how.options), *request.words]
    path.parent.mkdir(parents=True, exist_ok=True)
    if how.run == "train":
        _train(paper, study, path, request, words)
    else:
        make = {"bytes": _bytes, "repeats": _repeats, "four": _four}[how.run]
        _measure(path, make(paper, study, words), f"{paper.name}/{study}")


def configs_of(paper: Paper, study: str) -> dict[str, Config]:
    """Return the configs of a study by name: its own, and those of records.

    One that this version of the library cannot read is left out, with a line to stderr.
    """
    how = paper.studies[study]
    texts: dict[str, Any] = {}
    for source in how.configs_from or ([study] if how.run == "train" else []):
        wanted = paper.configurations(source)
        for record in trainings_of(paper.studies[source].committed):
            if record.configuration in wanted and record.configuration not in texts:
                texts[record.configuration] = yaml.safe_load(record.config)
    configs = {}
    for name, content in (texts | dict(how.configs)).items():
        try:
            configs[name] = read_config(content)
        except ValueError as error:
            print(f"{paper.name}/{study}: without {name}: {error}", file=sys.stderr)
    return configs


def _train(paper: Paper, study: str, path: Path, request: Request, words: list[str]) -> None:
    train, configs = EmulatedTrainer.from_words(words), configs_of(paper, study)
    train.check(configs)
    quality.study(
        train=train, configs=configs, seeds=request.seeds or paper.studies[study].seeds,
        limits=LIMITS, setup=train.setup, num_ranks=train.options.ranks, jobs=request.jobs,
        path=path, name=f"{paper.name}/{study}",
    )  # fmt: skip


def _measure(path: Path, cases: Cases, name: str) -> None:
    """Append a line for each case that the file lacks."""
    there = read(path) if path.exists() else {}
    missing = {case: make for case, make in cases.items() if case not in there}
    for number, (case, make) in enumerate(missing.items(), start=1):
        print(f"{name}: {case} ({number} of {len(missing)})", file=sys.stderr, flush=True)
        line = json.dumps({"case": case, "values": dict(make())}) + "\n"
        with path.open("ab", buffering=0) as file:
            file.write(line.encode())
            os.fsync(file.fileno())


def _bytes(paper: Paper, study: str, words: list[str]) -> Cases:
    """Return by config how many times fewer bytes than float32 a training sends."""
    return {name: partial(times_fewer, config, words)
            for name, config in configs_of(paper, study).items()}  # fmt: skip


def times_fewer(config: Config, words: Sequence[str]) -> Values:
    """Train once; return how many times fewer bytes dense gradients and rows take, by kind."""
    model = EmulatedTrainer.from_words(words)(config, 0, 0.0)
    stats = [trainer.qcomm.stats() for trainer in model.trainers]
    by_kind = {
        "dense": [s.dense for s in stats],
        "forward": [s.embedding_forward for s in stats],
        "backward": [s.embedding_backward for s in stats],
    }
    by_kind["rows"] = by_kind["forward"] + by_kind["backward"]
    return {
        kind: sum(s.raw_nbytes for s in sent) / wire
        for kind, sent in by_kind.items() if (wire := sum(s.wire_nbytes for s in sent))
    }  # fmt: skip


def _repeats(paper: Paper, study: str, words: list[str]) -> Cases:
    """Return by ranks and plan, those of the records, whether each preset gives equal bits."""
    return {
        place: partial(_repeated, place, words) for place in read(paper.studies[study].committed)
    }


def _repeated(place: str, words: list[str]) -> Values:
    """Return 1 by config where two trainings have equal bits, 0 where not, REFUSED where it is.

    `another_seed`: 1 where the bits of another seed are others, which shows that they are seen.
    """
    ranks, plan = place.split(" ranks, ")
    words = ["--ranks", ranks, "--ranks-per-node", "1", "--plan", plan, *words]
    equal = {Path(name).name: _equal_bits(words, load_preset(name)) for name in presets()}
    seeds = {digest(words, load_preset("fp32"), seed=seed) for seed in (0, 1)}
    return equal | {"another_seed": float(len(seeds) == 2)}


def _equal_bits(words: Sequence[str], config: Config) -> float:
    """Return 1, 0 or REFUSED. Raises ValueError: an error other than that of a mask's sharding."""
    try:
        return float(digest(words, config) == digest(words, config))
    except ValueError as error:
        if "forward_mask needs a table- or column-wise sharding" not in str(error):
            raise
        return REFUSED


def _four(paper: Paper, study: str, words: list[str]) -> Cases:
    """Return whether the plugin in float32, with four shardings, has TorchRec's bits."""

    def as_stock() -> Values:
        place = ["--plan", str(FOUR), "--ranks", "4", "--ranks-per-node", "2", *words]
        exact = digest(place, load_preset("fp32"))
        return {
            "fp32": float(exact == digest(place, None)),
            "another_config": float(exact != digest(place, load_preset("fp16_bf16"))),
        }

    return {"stock": as_stock}


class StockTrainer(EmulatedTrainer):
    """Callback of a study: the same DLRM by TorchRec alone, whatever the config."""

    def shard(self, options: Namespace, num_embeddings: list[int], config: Config) -> Any:
        return shard(Namespace(**vars(options) | {"config": STOCK}), num_embeddings, None)


def digest(words: Sequence[str], config: Config | None, seed: int = 0) -> str:
    """Train, and return the SHA-256 of the losses and of all weights of all ranks.

    Args: words: options of train.py.  config: None trains with TorchRec alone.
    """
    trainer = StockTrainer if config is None else EmulatedTrainer
    model = trainer.from_words(words)(config or load_preset("fp32"), seed, 0.0)
    sha = hashlib.sha256(torch.tensor(model.losses, dtype=torch.float64).numpy().tobytes())
    for each in model.trainers:
        for name, weight in sorted(each.dmp.state_dict().items()):
            sha.update(name.encode())
            is_sharded = isinstance(weight, ShardedTensor)
            for part in [s.tensor for s in weight.local_shards()] if is_sharded else [weight]:
                sha.update(part.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()
