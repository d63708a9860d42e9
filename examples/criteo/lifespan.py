"""Trainings to which something happens: with fixed codecs, with a guard over them, in float32.

  python examples/criteo/lifespan.py --config my.yaml --drift outlier:C14 --data train.txt
  python examples/criteo/lifespan.py --config best --drift none spike dead:C14 --seeds 3

Each drift happens before step --at-step, to four trainings of each seed alike: in float32 (fp32),
in float32 with initial weights off by a relative 1e-6 (null: the noise), with the codecs of
--config (fixed), and with a guard over them (guard: its own `guard`, or one of --every,
--limit-ne and --hold). Drifts, where C14 may be any feature:

  none            nothing: the guard should not trip
  scale:C14       all rows of the table times 1000
  shrink:C14      all rows of the table over 1000
  outlier:C14     one row times 1000, of an id that 1 % of the samples have
  shift:C14       the first column of the table plus 3
  new_ids:C14     every id becomes another one, and nothing that was learned of it holds
  dead:C14        the same id in all samples
  spike           learning rates times 10 for 5 steps

outlier:C14*30 takes 30 in the place of 1000, and so do scale and shrink.

With --search-first .3 the codecs are those of a search (search.py) on the first 30 % of the rows,
for a budget of --limit-ne. All trainings are then in float32 on these rows, as the search found
them, and go on with their codecs on the rest, as from a checkpoint. --config gives what is not
about embeddings. The records of the search are in --out/search, its plan in --out/plan.yaml.

The guard's probes are the last --probes global batches of the training part, which no training
here trains on. What has run is in --out/lifespan.jsonl and is not run again; after Ctrl-C, or for
more drifts or seeds, give the command again. The options of data and model are those of
accuracy.py. `--out` of an earlier run and no new training shows what is there.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import study_command
from emulation.client import EmulatedModel, EmulatedTrainer
from life.course import Course
from life.drifts import Drift
from life.lives import Lives
from life.plot import plot
from life.table import table_of
from search import criteo
from tqdm import tqdm

import trec_qcomm
import trec_qcomm.search
from trec_qcomm import Config
from trec_qcomm.config import config_to_dict, load_preset, read_config, read_yaml, write_yaml
from trec_qcomm.lab import records
from trec_qcomm.lab.guard.rule import GuardRule
from trec_qcomm.lab.records import Environment, ProgressRecord, Record, TrafficBytes, TrainingRecord

NAMES = ("fp32", "null", "fixed", "guard")
PERTURBATION = 1e-6


def main() -> int:
    """Run what is missing and show all; the exit status is 2 after a mistake, 130 after Ctrl-C."""
    return study_command.run(_parser(), "lifespan.jsonl", run_all, _show)


def run_all(arguments: argparse.Namespace, rest: Sequence[str], path: Path) -> Lives:
    """Run the trainings that the file lacks, and return all that it has."""
    train = EmulatedTrainer.from_words(rest)
    drifts = [Drift.from_name(word, arguments.at_step) for word in arguments.drift]
    configs = configs_of(arguments)
    train.check({"config": configs["guard"]})
    setup = train.setup | {"at_step": arguments.at_step, "num_probes": arguments.probes}
    exact_steps = 0
    if arguments.search_first is not None:
        exact_steps = first_steps(train, arguments)
        setup["exact_steps"] = exact_steps
        configs = configs_of(arguments, searched(train, arguments, rest, exact_steps))
    lives = Lives.read(path, setup, {name: _yaml(config) for name, config in configs.items()})
    missing = [
        (drift, name, seed)
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        for drift in drifts
        for name in arguments.runs
        if (str(drift), name, seed) not in lives.trainings
    ]
    for drift, name, seed in tqdm(missing, unit="training", disable=None):
        run = f"{drift} {name} {seed}"
        course = Course(
            drift,
            arguments.probes,
            arguments.log_every,
            path.parent / "guard.jsonl",
            run,
            is_tested=not arguments.no_test,
        )
        made = train_once(train, configs[name], name, seed, course, setup, exact_steps)
        records.append(path, *made)
        lives.add(made)
    return lives


def _show(lives: Lives, arguments: argparse.Namespace) -> None:
    study_command.write_table(table_of(lives), arguments.out)
    print(table_of(lives))
    plot(lives, arguments.out / "lifespan.png")


def first_steps(train: EmulatedTrainer, arguments: argparse.Namespace) -> int:
    """Return the number of steps on the rows that the search may see.

    Raises: ValueError: none or all of them, or a drift before they end.
    """
    share: float = arguments.search_first
    if not 0 < share < 1:
        raise ValueError(f"--search-first {share}: expected a number between 0 and 1")
    num_steps = int(share * min(train.num_steps, train.num_batches - arguments.probes))
    if num_steps < 1:
        raise ValueError(f"--search-first {share}: no step has so few rows")
    if arguments.drift != ["none"] and arguments.at_step < num_steps:
        raise ValueError(f"--at-step {arguments.at_step}: before the search ends, {num_steps}")
    return num_steps


def searched(
    train: EmulatedTrainer, arguments: argparse.Namespace, rest: Sequence[str], num_steps: int
) -> Config:
    """Return the config of the plan that a search finds on the rows of the first steps."""
    folder: Path = arguments.out
    base = dataclasses.replace(read_config(arguments.config), guard=None)
    given = criteo(rest) | {"train": train.on_first(num_steps), "base": base}
    given["setup"] = given["setup"] | {"num_rows": num_steps * train.global_batch}
    result = trec_qcomm.search(
        **given,
        budget=arguments.limit_ne,
        path=folder / "search",
        probe_seeds=arguments.search_seeds,
        calibration_seeds=arguments.search_seeds + 1,
        candidates=None if arguments.search_codecs is None else read_yaml(arguments.search_codecs),
        rounds=0,
        every=max(1, min(50, num_steps // 4)),
    )
    result.write(folder / "plan.yaml")
    return result.config


def configs_of(arguments: argparse.Namespace, plan: Config | None = None) -> dict[str, Config]:
    """Return the config of each training by name.

    Args: plan: config that a search chose, for the place of --config.
    """
    exact, given = load_preset("fp32"), read_config(arguments.config)
    given = dataclasses.replace(given if plan is None else plan, guard=given.guard)
    guard = given.guard or GuardRule(
        every=arguments.every, limit_ne=arguments.limit_ne, hold=arguments.hold
    )
    coded = {"fixed": None, "guard": guard}
    return {"fp32": exact, "null": exact} | {
        name: dataclasses.replace(given, guard=rule) for name, rule in coded.items()
    }


def train_once(
    train: EmulatedTrainer,
    config: Config,
    name: str,
    seed: int,
    course: Course,
    setup: dict[str, str | int | float | bool],
    exact_steps: int,
) -> list[Record]:
    """Return the records of a training: its progress, those of its guard, and the whole."""
    course.guard_file.unlink(missing_ok=True)
    batch_size = train.options.ranks * train.options.batch_size
    model = train.run(
        config,
        seed,
        PERTURBATION if name == "null" else 0.0,
        course,
        lambda dataset: course.change_rows(dataset, batch_size),
        exact_steps,
    )
    shared = {"configuration": name, "seed": seed, "run": course.run}
    progress = [
        ProgressRecord(step=step, traffic=_traffic(course, step), **shared) for step in course.stats
    ]
    guarded = records.read(course.guard_file) if course.guard_file.exists() else []
    course.guard_file.unlink(missing_ok=True)
    return [*progress, *guarded, _whole(model, config, course, setup, shared)]


def _whole(model: EmulatedModel, config: Config, course: Course, setup, shared) -> TrainingRecord:
    losses = model.losses
    return TrainingRecord(
        **shared,
        config=_yaml(config),
        setup=setup | {"drift": str(course.drift)},
        environment=Environment.current(repository=Path(__file__).parent),
        time=time.time(),
        steps=len(losses),
        num_ranks=model.options.ranks,
        losses=tuple(round(loss, 6) for loss in losses),
        metrics=model.evaluate(config) if course.is_tested else {},
        metrics_exact=model.evaluate(load_preset("fp32")) if course.is_tested else {},
    )


def _traffic(course: Course, step: int) -> dict[str, TrafficBytes]:
    """Return the bytes sent since the start by kind, the mean over ranks."""
    by_rank = [stats.by_kind() for stats in course.stats[step]]
    return {
        kind: TrafficBytes(wire_nbytes=sum(s[kind].wire_nbytes for s in by_rank) / len(by_rank))
        for kind in by_rank[0]
        if any(stats[kind].wire_nbytes for stats in by_rank)
    }


def _yaml(config: Config) -> str:
    return write_yaml(config_to_dict(config))


def _parser() -> argparse.ArgumentParser:
    parser = study_command.make_parser(__doc__)
    study_command.add_seeds(parser, seeds=1, out="runs/lifespan")
    add = parser.add_argument
    add("--config", default="best", help="a YAML file of trec_qcomm, or a preset (default best)")
    add("--drift", nargs="+", default=["none"], help="what happens (default none)")
    add("--at-step", type=int, default=100, help="steps before it happens (default 100)")
    add("--search-first", type=float, metavar="SHARE", help="codecs of a search on the first rows")
    add("--search-codecs", type=Path, metavar="FILE.yaml", help="its candidates (default: all)")
    add("--search-seeds", type=int, default=1, help="probes of that search (default 1)")
    add("--runs", nargs="+", choices=NAMES, default=NAMES, help="which trainings (default all)")
    add("--first-seed", type=int, default=0, help="the first of them (default 0)")
    add("--every", type=int, default=10, help="steps between probes (default 10)")
    add("--hold", type=float, help="guard.hold of its error bounds (default none)")
    add("--limit-ne", type=float, default=0.02, help="limit of the guard, percent (default .02)")
    add("--probes", type=int, default=8, help="batches of a probe (default 8)")
    add("--no-test", action="store_true", help="train only: no loss of the test")
    add("--log-every", type=int, default=10, help="steps between notes of bytes (default 10)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
