"""StudyResult: what a study showed, as verdicts, a table in markdown and a plot.

Knows: records, verdicts, the report's figure. Does not know: how the trainings were run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trec_qcomm.lab.records import LimitsByMetric, StudyRecord
from trec_qcomm.lab.report.style import render
from trec_qcomm.lab.study.engine import Study
from trec_qcomm.lab.study.gates import BASELINE, NULL, Verdict
from trec_qcomm.lab.study.paired import Change
from trec_qcomm.lab.study.verdicts import MODES, Mode, lines_of, shown_changes


@dataclass(frozen=True)
class StudyResult:
    """Result of a study; `str()` is its table and the verdicts in a sentence.

    Args:
        study: the study.
        records: lines of the file that are of its seeds.
        path: file of the records.
    """

    study: Study
    records: Sequence[StudyRecord]
    path: Path

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Verdict on the trainings of each configuration; without limits for these, empty."""
        return self._verdicts("training")

    @property
    def evaluation_verdicts(self) -> dict[str, Verdict]:
        """Verdict on the baseline's model with the codecs of each configuration switched on."""
        return self._verdicts("eval-only")

    @property
    def passed(self) -> list[str]:
        """Names of the configurations that passed every gate of the study."""
        gates = [self._verdicts(mode) for mode in self.study.modes]
        return [
            name for name in self.study.configurations
            if all(name in gate and gate[name].passed for gate in gates)
        ]  # fmt: skip

    def table(self) -> str:
        """Return markdown, a line a configuration, the null run first.

        Changes are mean [95 % interval], one-sided upper 95 % limit; positive is worse.
        """
        by_mode = {mode: self.study.verdicts(self.records, mode) for mode in MODES}
        extra = {name: self._extra(name) for name in self._names}
        extra_columns = list(dict.fromkeys(key for changes in extra.values() for key in changes))
        head, cells = ["config", "seeds"], {name: [name] for name in self._names}
        for name, row in cells.items():
            row.append(str(self._num_seeds(name)))
        for mode in self.study.modes:
            where = "eval-only: " * (mode == "eval-only")
            limits = self.study.rules.gated(mode)
            head += [_head(where + metric, limits, metric) for metric in limits]
            head.append(f"{mode} gate")
            for name, row in cells.items():
                verdict = by_mode[mode].get(name)
                row += [str(verdict.changes[m]) if verdict else "-" for m in limits]
                row.append(verdict.text if verdict and name != NULL else "-")
        head += [_head(key, self.study.rules.training, key.split(",")[0]) for key in extra_columns]
        for name, row in cells.items():
            row += [str(extra[name].get(key, "-")) for key in extra_columns]
        lines = [head, ["---"] * len(head), *cells.values()]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def summary(self) -> str:
        """Return one line: which configurations passed which gate, and how many runs it took."""
        names = list(self.study.configurations)
        parts = []
        for mode in self.study.modes:
            passed = [name for name, verdict in self._verdicts(mode).items() if verdict.passed]
            parts.append(f"{mode} gate passed by {', '.join(passed) or 'none'}")
        planned = len(self.study.seeds)
        seeds = f"at most {planned} seeds" if self.study.rules.looks else f"{planned} seeds"
        return f"{'; '.join(parts)} of {', '.join(names)}; {seeds}; {self.path}"

    def plot(self, path: str | Path) -> None:
        """Draw means and intervals beside the limits as a PNG.

        Args: path: file to write, with the suffix .png.
        Raises: ValueError: another suffix, or matplotlib is not installed.
        """
        path = Path(path)
        if path.suffix != ".png":
            raise ValueError(f"path {path}: expected a name that ends in .png")
        # The report imports this package, and here alone it is the other way round.
        from trec_qcomm.lab.report.figures.quality import interval_figure, study_title

        path.parent.mkdir(parents=True, exist_ok=True)
        title, rules = study_title(self.study.num_ranks, self.study.setup), self.study.rules
        lines = lines_of(self.study.by_name(self.records), rules, self.study.seeds)
        render(interval_figure(path.stem, title, lines, rules), path.parent)

    def __str__(self) -> str:
        return f"{self.table()}\n{self.summary()}"

    @property
    def _names(self) -> list[str]:
        return [NULL, *self.study.configurations]

    def _verdicts(self, mode: Mode) -> dict[str, Verdict]:
        verdicts = self.study.verdicts(self.records, mode)
        return {name: verdict for name, verdict in verdicts.items() if name != NULL}

    def _num_seeds(self, name: str) -> int:
        """Return the seeds that the verdicts rest on."""
        verdicts = (self.study.verdicts(self.records, mode).get(name) for mode in MODES)
        return max((verdict.num_seeds for verdict in verdicts if verdict), default=0)

    def _extra(self, name: str) -> dict[str, Change]:
        groups = self.study.by_name(self.records)
        return shown_changes(groups[name], groups[BASELINE], self.study.rules)


def _head(title: str, limits: LimitsByMetric, metric: str) -> str:
    """Return the head of a column: the metric, and the unit of its changes."""
    limit = limits.get(metric)
    return f"{title}, %" if limit is None or limit.is_relative else title
