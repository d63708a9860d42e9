"""Probes: measure every candidate on every table, in float32 trainings that are run anyway.

There is one float32 training for each seed. Its config asks the numeric debugger to try all
candidates on the rows and gradients of some steps (bytes and noise). If `train` returns a
`quality.Trained`, the trained model is also scored with forward codecs switched on. It is scored
with each candidate on all tables. It is also scored with one coarse codec on one table at a time,
which shows each table's share.

Knows: debug records, `train`. Does not know: what is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trec_qcomm.codecs import ErrorBounded
from trec_qcomm.config import Config, UniqueBagsChoice
from trec_qcomm.core.codec import Codec
from trec_qcomm.lab import records
from trec_qcomm.lab.debug.rule import DebugRule
from trec_qcomm.lab.records import DebugRecord, Metrics, Scalar, SearchRecord
from trec_qcomm.lab.records.json_lines import read_same
from trec_qcomm.lab.search.candidates import EXACT, Candidates, label
from trec_qcomm.lab.search.choices import Pair, config_of_all, config_of_some
from trec_qcomm.lab.search.noise import ALL, Case, Measured, figures_of, measured
from trec_qcomm.lab.study import Trained
from trec_qcomm.lab.study.engine import Train
from trec_qcomm.lab.study.progress import Progress

COARSE = ErrorBounded(0.2)  # a finer codec's effect on one table would drown in chance


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Probes of a search in a file of records. `run` runs missing ones.

    Args:
        train: callback of quality.study.
        candidates: codecs to try.
        path: file of the records.
        seeds: seeds of the float32 trainings.
        metrics: metrics of the trainings; the first one that an evaluation also has gives the
            effects.
        unique_bags: whether equal bags are sent once.
        every: steps from one measured step to the next.
        setup: all settings that must be equal for two runs to be compared.
        num_ranks: number of ranks that `train` uses or emulates.
    """

    train: Train
    candidates: Candidates
    path: Path
    seeds: Sequence[int]
    metrics: Sequence[str]
    unique_bags: UniqueBagsChoice
    every: int
    setup: Mapping[str, Scalar]
    num_ranks: int

    def run(self, progress: Progress) -> Measured:
        """Run missing probes, and return the results of all probes.

        Raises: ValueError: a file of another search, or a training that left no debug records.
        """
        for seed in self.seeds:
            missing = self._missing(seed)
            if missing:
                progress.begin(f"probe of seed {seed}: a float32 training, candidates on the side")
                records.append(self.path, *self._probe(seed, missing, progress))
        lines = [line for line in self._read() if line.seed in self.seeds]
        return measured(lines, self._tried, self.metrics)

    @property
    def _tried(self) -> tuple[Codec, ...]:
        """All candidates, and COARSE."""
        return tuple(dict.fromkeys((EXACT, *self.candidates.all, COARSE)))

    def _missing(self, seed: int) -> list[Codec]:
        """Return the codecs that a seed was not probed with; a seed is written when it is whole."""
        done = "; ".join(
            line.codec or "" for line in self._read() if (line.seed, line.stage) == (seed, "done")
        ).split("; ")
        return [codec for codec in self._tried if repr(codec) not in done]

    def _probe(self, seed: int, codecs: Sequence[Codec], progress: Progress) -> list[SearchRecord]:
        """Train in float32; return what codecs do to the tables, and to the model."""
        shadow = tuple(codec for codec in codecs if codec != EXACT)
        exact = config_of_all(Pair(), self.unique_bags)
        model, debugged = self._train(exact, seed, shadow)
        figures = figures_of(debugged)
        if not figures:
            raise ValueError(
                f"train: seed {seed} left no debug records of tables; its config asks for them by "
                f"`debug` (every {self.every} steps), so hand all of it to QComm"
            )
        lines = [self._record("probe", seed, numbers, *case) for case, numbers in figures.items()]
        if isinstance(model, Trained):
            configs = self._configs_to_score(measured(lines, self._tried, self.metrics), codecs)
            progress.begin(f"seed {seed}: the trained model, codecs switched on", len(configs))
            for (table, codec), config in configs.items():
                metrics = {name: float(value) for name, value in model.evaluate(config).items()}
                case: Case = table, "forward", repr(codec)
                lines.append(self._record("evaluation", seed, metrics, *case))
                progress.step(f"seed {seed}: {label(codec)} of {table}")
        return [*lines, self._record("done", seed, {}, codec="; ".join(map(repr, codecs)))]

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
                Pair(forward=COARSE), [table], probes.tables, self.unique_bags
            )
        return configs

    def _read(self) -> list[SearchRecord]:
        """Return the records so far. Raises ValueError: others, or of another setup."""
        setup, num_ranks = self.setup, self.num_ranks
        return read_same(self.path, SearchRecord, setup, num_ranks, "a search with other")

    def _record(
        self, stage: Any, seed: int, figures: Mapping[str, float],
        table: str | None = None, direction: Any = None, codec: str | None = None,
    ) -> SearchRecord:  # fmt: skip
        return SearchRecord(
            configuration="search", setup=self.setup, num_ranks=self.num_ranks, seed=seed,
            time=time.time(), stage=stage, table=table, direction=direction, codec=codec,
            figures=figures,
        )  # fmt: skip

    def _train(
        self, config: Config, seed: int, shadow: Sequence[Codec]
    ) -> tuple[Metrics | Trained, list[DebugRecord]]:
        """Return what was trained, and the records of its numeric debugger."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self.path.parent, prefix="debug-") as folder:
            debug = DebugRule(folder=folder, every=self.every, shadow=shadow)
            model = self.train(replace(config, debug=debug), seed, 0.0)
            files = sorted(Path(folder).glob("debug-rank*.jsonl"))
            lines = [line for file in files for line in records.read(file)]
        return model, [line for line in lines if isinstance(line, DebugRecord)]
