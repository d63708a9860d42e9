"""Which tables' codecs cost most: qcomm.attribute, and beside it a training for each table.

  python examples/criteo/attribution.py --config my.yaml --data train.txt --out runs/attribution
  python examples/criteo/accuracy.py --configs runs/attribution/tables/*.yaml --seeds 4 \\
      --modes training --data train.txt --out runs/truth
  python examples/criteo/attribution.py --config my.yaml --data train.txt --out runs/attribution \\
      --truth runs/truth/runs.jsonl

The first command trains in float32 from each seed, switches the forward codecs of --config on, and
lets qcomm.attribute tell what each of them adds to the loss, on every third of --batches test
batches; and once more for a training with the codecs on. It also writes a config for each table, in
which only that table's forward codec is not exact. The second trains each of these: what the codec
of a table really costs, as a change of the test's NE. The third gives the rank correlation
(Spearman) of both.

What is in --out/attribution.jsonl is not run again. The options of data and model are those of
accuracy.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import study_command
from emulation.client import EmulatedModel, EmulatedTrainer, batches, tables
from tqdm import tqdm
from trainer import Trainer

from trec_qcomm import Config, Identity
from trec_qcomm.config import codec_to_dict, config_to_dict, load_preset, read_config, write_yaml
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord, Environment, StudyRecord

BATCH_STEP = 3  # one in so many batches of the test
TRAINED = ("float32", "coded")
Effects = Mapping[str, float]  # by table


def main() -> int:
    """Run what is missing and show all; the exit status is 2 after a mistake, 130 after Ctrl-C."""
    return study_command.run(_parser(), "attribution.jsonl", _complete, _show)


def _complete(arguments: argparse.Namespace, rest: Sequence[str], path: Path) -> str:
    train = EmulatedTrainer.from_words(rest)
    config = read_config(arguments.config)
    train.check({arguments.config.stem: config})
    write_tables(config, arguments.out / "tables")
    attribute_all(train, config, path, seeds=arguments.seeds, num_batches=arguments.batches)
    truth = read_truth(arguments.truth) if arguments.truth else {}
    return f"{table_of(read_effects(path), truth)}\n{arguments.seeds} seeds; {path}"


def _show(text: str, arguments: argparse.Namespace) -> None:
    print(f"{text}; for accuracy.py: {arguments.out / 'tables'}")


def write_tables(config: Config, folder: Path) -> None:
    """Write a config for each table that sends only its rows as `config` does, the rest exactly."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in coded_tables(config):
        forward = {table: config.rule_for(table).forward, "*": Identity()}
        rules = [
            {"tables": name, "forward": codec_to_dict(codec), "backward": codec_to_dict(Identity())}
            for name, codec in forward.items()
        ]
        text = write_yaml({"embedding": rules, "seed": config.seed})
        (folder / f"{table}.yaml").write_text(text)


def coded_tables(config: Config) -> list[str]:
    """Return the tables whose rows are not sent exactly. Raises ValueError: there are none."""
    coded = [t for t in tables() if not isinstance(config.rule_for(t).forward, Identity)]
    if not coded:
        raise ValueError(f"{config.source}: all forward codecs are exact")
    return coded


def attribute_all(
    train: EmulatedTrainer, config: Config, path: Path, *, seeds: int, num_batches: int
) -> None:
    """Append the records of all seeds that are not in the file yet."""
    setup = train.setup | {"num_batches": num_batches}
    text = write_yaml(config_to_dict(config))
    done = set()
    for record in read_records(path):
        if record.setup != setup or record.config != text:
            raise ValueError(f"{path}: of another setup or config; give another --out")
        done.add((record.case["seed"], record.case["trained"]))
    missing = [(s, t) for s in range(seeds) for t in TRAINED if (s, t) not in done]
    for seed, trained in tqdm(missing, unit="training", disable=None):
        model = train(config if trained == "coded" else load_preset("fp32"), seed, 0.0)
        for table, added in effects_of(model, config, num_batches).items():
            record = BenchRecord(
                configuration=Path(config.source).stem, config=text, setup=setup,
                environment=Environment.current(), time=time.time(), bench="attribution",
                case={"seed": seed, "trained": trained, "table": table},
                figures={"added_loss": added},
            )  # fmt: skip
            records.append(path, record)


def effects_of(model: EmulatedModel, config: Config, num_batches: int) -> Effects:
    """Return what each table's forward codec adds to the loss of the test, the mean of batches."""

    def attribute(trainer: Trainer) -> list[Any]:
        tests = batches(model.dataset, model.options, is_test=True)
        trainer.dmp.eval()
        numbers = range(0, len(tests), BATCH_STEP)[:num_batches]
        return [trainer.qcomm.attribute(lambda b: trainer.dmp(b)[0], tests[i]) for i in numbers]

    trainers = model.trainers_with(config)
    attributions = model.ranks.run(attribute, trainers)[0]
    each = [{e.table: e.added_loss for e in a.tables} for a in attributions]
    return {table: mean(effects[table] for effects in each) for table in each[0]}


def read_records(path: Path) -> Iterator[BenchRecord]:
    """Yield the records of this program. Raises ValueError: one of another kind."""
    for record in records.read(path) if path.exists() else ():
        if not isinstance(record, BenchRecord) or record.bench != "attribution":
            raise ValueError(f"{record.origin}: no record of attribution.py")
        yield record


def read_effects(path: Path) -> dict[str, Effects]:
    """Return the mean over seeds by how the model was trained, then by table."""
    values: dict[str, dict[str, list[float]]] = {trained: {} for trained in TRAINED}
    for record in read_records(path):
        by_table = values[str(record.case["trained"])]
        by_table.setdefault(str(record.case["table"]), []).append(
            float(record.figures["added_loss"])
        )
    return {t: {table: mean(v) for table, v in by.items()} for t, by in values.items()}


def read_truth(path: Path) -> dict[str, list[float]]:
    """Return for each table one change of the test's NE a seed, in percent.

    Raises: ValueError: the file has no trainings of single tables and of float32.
    """
    nes: dict[str, dict[int, float]] = {}
    for record in records.read(path):
        if isinstance(record, StudyRecord) and record.training is not None:
            ne = record.training.metrics["ne"]
            nes.setdefault(record.configuration, {})[record.seed] = ne
    exact = nes.get("fp32", {})
    truth = {
        table: [100 * (ne / exact[seed] - 1) for seed, ne in nes[table].items()]
        for table in tables()
        if table in nes and nes[table].keys() <= exact.keys()
    }
    if not truth:
        raise ValueError(f"{path}: no trainings of tables/*.yaml, or not of the seeds of fp32")
    return truth


def table_of(effects: Mapping[str, Effects], truth: Mapping[str, Sequence[float]]) -> str:
    """Return the effects by table, and their rank correlations, as Markdown."""
    real = {table: mean(changes) for table, changes in truth.items()}
    head = "| table | added loss, trained in float32 | trained with codecs | NE of a training, % |"
    lines = [head, "|---|---|---|---|"]
    for table in sorted(effects["float32"], key=lambda t: -abs(effects["float32"][t])):
        cells = [f"{effects[trained][table]:+.5f}" for trained in TRAINED]
        cells.append(f"{real[table]:+.3f}" if table in real else "")
        lines.append(f"| {table} | {' | '.join(cells)} |")
    for trained in TRAINED if real else ():
        rho, low, high = rank_correlation(effects[trained], real)
        lines.append(
            f"\nRank correlation with the trainings, {trained}: {rho:.2f} [{low:.2f}, {high:.2f}]"
        )
    return "\n".join(lines)


def rank_correlation(one: Effects, other: Effects) -> tuple[float, float, float]:
    """Return Spearman's correlation over the tables of both, and its 95 % interval (Fisher's z)."""
    names = [table for table in one if table in other]
    ranks = [np.argsort(np.argsort([effects[t] for t in names])) for effects in (one, other)]
    rho = float(np.corrcoef(*ranks)[0, 1])
    z, half = np.arctanh(np.clip(rho, -0.999999, 0.999999)), 1.96 / max(len(names) - 3, 1) ** 0.5
    return rho, float(np.tanh(z - half)), float(np.tanh(z + half))


def _parser() -> argparse.ArgumentParser:
    parser = study_command.make_parser(__doc__)
    study_command.add_seeds(parser, seeds=3, out="runs/attribution")
    add = parser.add_argument
    add("--config", type=Path, required=True, help="YAML file of trec_qcomm")
    add("--batches", type=int, default=12, help="batches of the test (default 12)")
    add("--truth", type=Path, help="records of accuracy.py with the configs of tables/")
    return parser


if __name__ == "__main__":
    sys.exit(main())
