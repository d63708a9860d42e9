"""Probes: what every candidate does to every table, from float32 trainings that are run anyway.

One float32 training for each seed, whose config asks the numeric debugger to try all candidates on
the rows and gradients of some steps (bytes and noise). Where `train` returns a `quality.Trained`,
the trained model is scored with forward codecs switched on, too: with each candidate on all tables,
and with one coarse codec on one table at a time, which shows what each table is worth.

Of dense gradients one training for each candidate, with it for all parameters: factors of low rank
depend on the steps before, so nothing can be tried on the side. Its debug records tell bytes and
noise of each parameter where it was encoded.

Knows: debug records, `train`, sites of all-reduces. Does not know: what is chosen.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trec_qcomm.codecs import ErrorBounded
from trec_qcomm.comm.dense.error_feedback import CONTRIBUTION, OWNER
from trec_qcomm.comm.dense.low_rank.matrices import parameter_of
from trec_qcomm.config import Config, GradientRule, UniqueBagsChoice
from trec_qcomm.config.matching import PatternRules
from trec_qcomm.core.codec import Codec
from trec_qcomm.lab import records
from trec_qcomm.lab.debug.rule import DebugRule
from trec_qcomm.lab.records import DebugRecord, Metrics, Scalar, SearchRecord
from trec_qcomm.lab.search.candidates import EXACT, Candidates, Option, is_exact, label
from trec_qcomm.lab.search.choices import Pair, config_of_all, config_of_some
from trec_qcomm.lab.search.noise import ALL, Case, Measured, Noise, figures_of, measured
from trec_qcomm.lab.study import Trained
from trec_qcomm.lab.study.engine import Train
from trec_qcomm.lab.study.progress import Progress

COARSE = ErrorBounded(0.2)  # a finer codec's effect on one table would drown in chance


@dataclass(frozen=True, kw_only=True)
class ProbeFile:
    """Probes of a search in a file of records.

    Args:
        train: callback of quality.study.
        candidates: options to try.
        path: file of the records.
        every: steps from one measured step to the next.
        setup: all that must be equal for two runs to be compared.
        num_ranks: number of ranks that `train` uses or emulates.
    """

    train: Train
    candidates: Candidates
    path: Path
    every: int
    setup: Mapping[str, Scalar]
    num_ranks: int

    def read(self) -> list[SearchRecord]:
        """Return the records so far. Raises ValueError: others, or of another setup."""
        lines = []
        ours = dict(self.setup) | {"num_ranks": self.num_ranks}
        for record in records.read(self.path) if self.path.exists() else ():
            if not isinstance(record, SearchRecord):
                raise ValueError(f"{record.origin}: a record of kind {record.kind}, not search")
            theirs = dict(record.setup) | {"num_ranks": record.num_ranks}
            changed = [key for key in ours | theirs if ours.get(key) != theirs.get(key)]
            if changed:
                raise ValueError(
                    f"{self.path}: a search with other {', '.join(changed)}; give another path"
                )
            lines.append(record)
        return lines

    def record(
        self, stage: Any, seed: int, figures: Mapping[str, float],
        table: str | None = None, direction: Any = None, codec: str | None = None,
    ) -> SearchRecord:  # fmt: skip
        """Return the record of some figures."""
        return SearchRecord(
            configuration="search", setup=self.setup, seed=seed, time=time.time(),
            num_ranks=self.num_ranks, stage=stage, table=table, direction=direction,
            codec=codec, figures=figures,
        )  # fmt: skip

    def debugged(
        self, config: Config, seed: int, **rule: Any
    ) -> tuple[Metrics | Trained, list[DebugRecord]]:
        """Train with the numeric debugger; return what was trained, and its records.

        Args: rule: more arguments of DebugRule.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self.path.parent, prefix="debug-") as folder:
            debug = DebugRule(folder=folder, every=self.every, **rule)
            model = self.train(replace(config, debug=debug), seed, 0.0)
            files = sorted(Path(folder).glob("debug-rank*.jsonl"))
            lines = [line for file in files for line in records.read(file)]
        return model, [line for line in lines if isinstance(line, DebugRecord)]


@dataclass(frozen=True, kw_only=True)
class Probes(ProbeFile):
    """Probes of rows; `run` does what is missing in their file.

    Args:
        seeds: seeds of the float32 trainings.
        metrics: metrics of the trainings; the first that an evaluation has, too, gives the effects.
        unique_bags: whether equal bags are sent once.
    """

    seeds: Sequence[int]
    metrics: Sequence[str]
    unique_bags: UniqueBagsChoice

    def run(self, progress: Progress) -> Measured:
        """Run what is missing, and return what all probes showed.

        Raises: ValueError: a file of another search, or a training that left no debug records.
        """
        for seed in self.seeds:
            missing = self._missing(seed)
            if missing:
                progress.begin(f"probe of seed {seed}: a float32 training, candidates on the side")
                records.append(self.path, *self._probe(seed, missing, progress))
        lines = [line for line in self.read() if line.seed in self.seeds]
        return measured(lines, self._tried, self.metrics)

    @property
    def _tried(self) -> tuple[Codec, ...]:
        """All candidates, and COARSE."""
        return tuple(dict.fromkeys((EXACT, *self.candidates.of_rows, COARSE)))

    def _missing(self, seed: int) -> list[Codec]:
        """Return the codecs that a seed was not probed with; a seed is written when it is whole."""
        done = "; ".join(
            line.codec or "" for line in self.read() if (line.seed, line.stage) == (seed, "done")
        ).split("; ")
        return [codec for codec in self._tried if repr(codec) not in done]

    def _probe(self, seed: int, codecs: Sequence[Codec], progress: Progress) -> list[SearchRecord]:
        """Train in float32; return what codecs do to the tables, and to the model."""
        shadow = tuple(codec for codec in codecs if codec != EXACT)
        exact = config_of_all(Pair(), self.unique_bags)
        model, debugged = self.debugged(exact, seed, shadow=shadow)
        figures = figures_of(debugged)
        if not figures:
            raise ValueError(
                f"train: seed {seed} left no debug records of tables; its config asks for them by "
                f"`debug` (every {self.every} steps), so hand all of it to QComm"
            )
        lines = [self.record("probe", seed, numbers, *case) for case, numbers in figures.items()]
        if isinstance(model, Trained):
            configs = self._configs_to_score(measured(lines, self._tried, self.metrics), codecs)
            progress.begin(f"seed {seed}: the trained model, codecs switched on", len(configs))
            for (table, codec), config in configs.items():
                metrics = {name: float(value) for name, value in model.evaluate(config).items()}
                case: Case = table, "forward", repr(codec)
                lines.append(self.record("evaluation", seed, metrics, *case))
                progress.step(f"seed {seed}: {label(codec)} of {table}")
        return [*lines, self.record("done", seed, {}, codec="; ".join(map(repr, codecs)))]

    def _configs_to_score(
        self, probes: Measured, codecs: Sequence[Codec]
    ) -> dict[tuple[str, Codec], Config]:
        """Return configs by table and codec: all tables with each candidate, each with COARSE."""
        configs = {}
        forward = [codec for codec in self.candidates.forward if codec in codecs]
        for codec in (EXACT, *probes.different("forward", forward)):
            configs[ALL, codec] = config_of_all(Pair(forward=codec), self.unique_bags)
        for table in probes.tables if COARSE in codecs else ():
            configs[table, COARSE] = config_of_some(
                COARSE, "forward", [table], probes.items, self.unique_bags
            )
        return configs


Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class DenseProbes(ProbeFile):
    """Probes of dense gradients; `run` does what is missing. Args: seed: that of all trainings."""

    seed: int

    def run(self, progress: Progress) -> dict[tuple[str, Option], Noise]:
        """Run what is missing, and return bytes and noise by group and option.

        Raises: ValueError: a file of another search, a parameter that no group has, or a training
            that left no debug records.
        """
        lines = (line for line in self.read() if line.seed == self.seed)
        done = {(line.table, line.codec): line.figures for line in lines}
        groups = self.candidates.groups
        wanted = [
            rule
            for rule in self.candidates.dense
            if any((group, repr(rule)) not in done for group in groups)
        ]
        progress.begin("dense gradients: a training for each candidate", len(wanted))
        for rule in wanted:
            figures = self._probe(rule)
            case = {"direction": "dense", "codec": repr(rule)}
            made = (self.record("probe", self.seed, x, name, **case) for name, x in figures.items())
            records.append(self.path, *made)
            done |= {(group, repr(rule)): numbers for group, numbers in figures.items()}
            progress.step(f"dense gradients: {label(rule)}")
        return {
            (group, rule): noise_of(done[group, repr(rule)], rule)
            for group in groups
            for rule in self.candidates.dense
        }

    def _probe(self, rule: GradientRule) -> dict[str, Figures]:
        groups = self.candidates.groups
        rules = tuple(replace(rule, parameters=(group,)) for group in groups)
        config = replace(config_of_all(Pair(), unique_bags="auto"), dense=rules)
        _, lines = self.debugged(config, self.seed, tables=groups)
        figures = dense_figures_of(lines, self.candidates.groups_by_name, self.num_ranks)
        missing = [group for group in groups if group not in figures]
        if missing:
            raise ValueError(
                f"train: seed {self.seed} left no debug records of the dense gradients "
                f"{', '.join(missing)}; its config has `dense` and `debug`, so hand all of it to "
                "QComm, and let QComm wrap the dense part"
            )
        return figures


def dense_figures_of(
    lines: Iterable[DebugRecord], groups: PatternRules, num_ranks: int
) -> dict[str, Figures]:
    """Return for each group the figures of a rank and step.

    Bytes are those that a rank sends, to itself included: a message to all ranks counts once for
    each, and of values that go around in a ring each is sent twice.
    """
    steps: set[int] = set()
    ranks: set[int] = set()
    by_group: dict[str, list[DebugRecord]] = defaultdict(list)
    for line in lines:
        number = groups.number_of(parameter_of(line.name))
        if line.direction == "dense" and not line.is_shadow and number is not None:
            steps.add(line.step)
            ranks.add(line.rank)
            by_group[groups.patterns[number][0]].append(line)
    shares = len(steps) * len(ranks)
    figures = {}
    for group, of_group in by_group.items():
        sites = {line.site for line in of_group}
        sums: Figures = defaultdict(float)
        for line in of_group:
            num_values, energy = line.num_values or 0, (line.rms or 0.0) ** 2
            copies = _copies(line.site, is_ring=sites == {CONTRIBUTION}, num_ranks=num_ranks)
            sums["nbytes"] += copies * (line.bits or 0.0) * num_values / 8
            sums["values"] += num_values * (line.site == CONTRIBUTION or OWNER not in sites)
            sums[f"energy {line.site}"] += energy * num_values
            if line.snr_db is not None:
                sums[f"noise {line.site}"] += energy * num_values * 10 ** (-line.snr_db / 10)
        figures[group] = {name: value / shares for name, value in sums.items()}
    return figures


def _copies(site: str | None, *, is_ring: bool, num_ranks: int) -> float:
    """Return how often a rank sends what it encodes at a site, to itself included."""
    if site == OWNER:
        return num_ranks
    if site == CONTRIBUTION:
        return 2.0 if is_ring else 1.0
    return num_ranks / max(num_ranks - 1, 1)  # a stage of recursive doubling sends none to itself


def noise_of(figures: Mapping[str, float], rule: GradientRule) -> Noise:
    """Return bytes and noise: that of all sites, of which each adds its own.

    Nothing measures what factors of low rank leave out, most of which comes in later steps: it is
    taken to be one over the rank.
    """
    relative = 0.0
    for name, noise in figures.items():
        if name.startswith("noise "):
            relative += noise / (figures[name.replace("noise", "energy")] or 1.0)
    if rule.low_rank is not None:
        relative = 1 / rule.low_rank.rank
    return Noise(
        nbytes=figures["nbytes"],
        rows=figures["values"] / rule.block,
        dim=rule.block,
        relative=0.0 if is_exact(rule) else relative,
    )
