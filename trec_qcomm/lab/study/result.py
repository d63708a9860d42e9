"""StudyResult: results of a study, as verdicts and a table in markdown.

Knows: records, verdicts. Does not know: how the trainings were run.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trec_qcomm.lab.records import LimitsByMetric, StudyRecord
from trec_qcomm.lab.study.engine import Study
from trec_qcomm.lab.study.gates import BASELINE, NULL, Verdict
from trec_qcomm.lab.study.paired import Change
from trec_qcomm.lab.study.verdicts import Lines, Mode, lines_of, shown_changes


@dataclass(frozen=True)
class StudyResult:
    """Result of a study; `str()` is its table and the file of its records.

    Args:
        study: the study.
        records: lines of the file with its seeds.
        path: file of the records.
    """

    study: Study
    records: Sequence[StudyRecord]
    path: Path

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Verdict on the trainings of each configuration; empty without limits for trainings."""
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
        """Return a markdown table, one line for each configuration, the null run first.

        Changes are mean [95 % interval], one-sided upper 95 % limit; positive is worse.
        """
        extra = {name: self._extra(name) for name in self._names}
        extra_columns = list(dict.fromkeys(key for changes in extra.values() for key in changes))
        head, cells = ["config", "seeds"], {name: [name] for name in self._names}
        for name, row in cells.items():
            verdicts = self._lines.get(name, {}).values()
            row.append(str(max((verdict.num_seeds for verdict in verdicts), default=0)))
        for mode in self.study.modes:
            where = "eval-only: " * (mode == "eval-only")
            limits = self.study.rules.gated(mode)
            head += [_head(where + metric, limits, metric) for metric in limits]
            head.append(f"{mode} gate")
            for name, row in cells.items():
                verdict = self._lines.get(name, {}).get(mode)
                row += [str(verdict.changes[m]) if verdict else "-" for m in limits]
                row.append(verdict.text if verdict and name != NULL else "-")
        head += [_head(key, self.study.rules.training, key.split(",")[0]) for key in extra_columns]
        for name, row in cells.items():
            row += [str(extra[name].get(key, "-")) for key in extra_columns]
        lines = [head, ["---"] * len(head), *cells.values()]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def __str__(self) -> str:
        return f"{self.table()}\n{self.path}"

    @property
    def _names(self) -> list[str]:
        return [NULL, *self.study.configurations]

    @functools.cached_property
    def _lines(self) -> Lines:
        return lines_of(self.study.by_name(self.records), self.study.rules, self.study.seeds)

    def _verdicts(self, mode: Mode) -> dict[str, Verdict]:
        lines = {name: self._lines.get(name, {}) for name in self.study.configurations}
        return {name: line[mode] for name, line in lines.items() if mode in line}

    def _extra(self, name: str) -> dict[str, Change]:
        groups = self.study.by_name(self.records)
        return shown_changes(groups[name], groups[BASELINE], self.study.rules)


def _head(title: str, limits: LimitsByMetric, metric: str) -> str:
    """Return the head of a column: the metric, and the unit of its changes."""
    limit = limits.get(metric)
    return f"{title}, %" if limit is None or limit.is_relative else title
