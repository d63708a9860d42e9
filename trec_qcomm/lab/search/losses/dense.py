"""Probes of dense gradients: what each candidate sends of each group of parameters, and its noise.

One training for each candidate, with it for all parameters: factors of low rank depend on the
steps before, so nothing can be tried on the side. Its debug records tell bytes and noise of each
parameter where it was encoded.

Knows: debug records, `train`, sites of all-reduces. Does not know: what is chosen.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trec_qcomm.comm.dense.error_feedback import CONTRIBUTION, OWNER
from trec_qcomm.comm.dense.low_rank.matrices import parameter_of
from trec_qcomm.config import GradientRule
from trec_qcomm.config.matching import PatternRules
from trec_qcomm.lab import records
from trec_qcomm.lab.records import DebugRecord, Scalar, SearchRecord
from trec_qcomm.lab.search.candidates import Candidates
from trec_qcomm.lab.search.choices import Pair, config_of_all
from trec_qcomm.lab.search.losses.noise import Noise
from trec_qcomm.lab.search.losses.options import Option, is_exact, label
from trec_qcomm.lab.search.losses.probes import debugged, read_records
from trec_qcomm.lab.search.progress import Progress
from trec_qcomm.lab.study.engine import Train

Figures = dict[str, float]


@dataclass(frozen=True)
class DenseProbes:
    """Probes of dense gradients; `run` does what is missing in their file.

    Args: as those of Probes; `seed` is that of all trainings.
    """

    train: Train
    candidates: Candidates
    seed: int
    path: Path
    every: int
    setup: Mapping[str, Scalar]
    num_ranks: int

    def run(self, progress: Progress) -> dict[tuple[str, Option], Noise]:
        """Run what is missing, and return bytes and noise by group and option.

        Raises: ValueError: a file of another search, a parameter that no group has, or a training
            that left no debug records.
        """
        lines = read_records(self.path, self.setup, self.num_ranks)
        done = {(line.table, line.codec): line.figures for line in lines if line.seed == self.seed}
        groups = self.candidates.groups
        wanted = [
            rule
            for rule in self.candidates.dense
            if any((group, repr(rule)) not in done for group in groups)
        ]
        progress.begin("dense gradients: a training for each candidate", len(wanted))
        for rule in wanted:
            figures = self._probe(rule)
            made = [self._record(group, rule, numbers) for group, numbers in figures.items()]
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
        _, lines = debugged(
            self.train, config, self.seed, self.path.parent, every=self.every, tables=groups
        )
        figures = figures_of(lines, self.candidates.groups_by_name, self.num_ranks)
        missing = [group for group in groups if group not in figures]
        if missing:
            raise ValueError(
                f"train: seed {self.seed} left no debug records of the dense gradients "
                f"{', '.join(missing)}; its config has `dense` and `debug`, so hand all of it to "
                "QComm, and let QComm wrap the dense part"
            )
        return figures

    def _record(self, group: str, rule: GradientRule, figures: Figures) -> SearchRecord:
        return SearchRecord(
            configuration="search", setup=self.setup, seed=self.seed, time=time.time(),
            num_ranks=self.num_ranks, stage="probe", table=group, direction="dense",
            codec=repr(rule), figures=figures,
        )  # fmt: skip


def figures_of(
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
