"""Claims as data: what a paper says, the study whose records decide it, and the table of both.

Knows: the YAML file of each paper, rules by name. Does not know: how a study is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from examples.papers.decisions import FAILS, HOLDS, OPEN, Outcome
from examples.papers.rules import benches, measured, tool_chain, trainings
from trec_qcomm.lab.study.gates import BASELINE

EXAMPLES = Path(__file__).resolve().parents[1]
PAPERS = ("kdd20", "dct", "sc24", "zionex", "micro21")  # in the order of the page
VERDICTS = (HOLDS, FAILS, OPEN)
SOURCES = {"abstract": "abstract", "artefact": "artefact", "ours": "our reading"}
GONE = "a63d3dd"  # the last commit with the code of studies that are records only
HEAD = ("claim", "by", "setting", "result", "verdict", "to tell more")
RUNS = ("train", "bytes", "repeats", "four")  # functions of run.py
MODULES = (measured, benches, tool_chain)
RULES: dict[str, tuple[Callable[..., Any], Callable[..., Outcome | None]]] = {
    rule.__name__: (module.read, rule) for module in MODULES for rule in module.RULES
}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper, and what decides it: `no_loss`, `lower` or `rule`.

    Args:
        study: name of the study.
        text: the claim in one sentence; in quotation marks only where these are the paper's words.
        by: where it is from: the paper's abstract, the authors' published code (artefact), or our
            own reading of what is not public (ours).
        setting: model, rows, ranks; `{seeds}` and other fields are filled in.
        no_loss: configurations whose losses are not above those of `against`.
        against: configuration that they are compared with.
        uncounted: configurations of `no_loss` that are shown and do not count.
        lower: configurations whose losses are lower, and with which one each is compared.
        called: name of the latter in the table; empty: it is not named.
        rule: name of a function in the folder rules.
        cases: patterns of the cases that the function is given; all of them by default.
        arguments: keyword arguments of the function.
        note: what it would take to tell more, beside what the verdict says.
    Raises: ValueError: an unknown `by` or rule, or not just one thing that decides.
    """

    study: str
    text: str
    by: str
    setting: str
    no_loss: Sequence[str] = ()
    against: str = BASELINE
    uncounted: Sequence[str] = ()
    lower: Mapping[str, str] = field(default_factory=dict)
    called: str | None = None
    rule: str = ""
    cases: Sequence[str] = ("*",)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        if self.by not in SOURCES:
            raise ValueError(f"by {self.by!r}: expected one of {', '.join(SOURCES)}")
        if sum(map(bool, (self.no_loss, self.lower, self.rule))) != 1:
            raise ValueError(f"claim {self.text!r}: expected one of no_loss, lower, rule")
        if self.rule and self.rule not in RULES:
            raise ValueError(f"rule {self.rule!r}: expected one of {', '.join(RULES)}")

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Configurations of trainings, and those that they are compared with."""
        return list(self.lower.items()) or [(name, self.against) for name in self.no_loss]

    def outcome(self, path: Path, committed: Path) -> Outcome | None:
        """Return what the records of a file or folder decide; None where it has none of them.

        Measured cases decide once all are there that the committed records have.

        Args: path: file or folder of records.  committed: file or folder of the page's records.
        """
        if not path.exists():
            return None
        if not self.rule:
            counted = [name not in self.uncounted for name, _ in self.pairs]
            return trainings.compare(path, self.pairs, counted, bool(self.lower), self.called)
        read, rule = RULES[self.rule]
        content = read(path)
        if isinstance(content, dict):
            there = read(committed)
            names = [n for pattern in self.cases for n in there if fnmatchcase(n, pattern)]
            if not all(name in content for name in names):
                return None
            content = {name: content[name] for name in names}
        return rule(content, **self.arguments) if content else None


@dataclass(frozen=True, kw_only=True)
class Study:
    """An experiment with a file of records.

    Args:
        about: what it measures, on one line.
        records: file or folder of the committed records, in the folder examples.
        run: function of run.py that measures it anew.
        made_by: command elsewhere in this repository that measures it anew.
        was_made_by: command of the commit GONE that made the records; nothing makes them today.
        seeds: number of seeds of a training; None where the function has no seeds.
        options: options of examples/criteo/train.py.
        configs: configs by name, as YAML has them, beside those of `configs_from`.
        configs_from: studies whose records have further configs.
        timed: files in a folder of records that have the seconds of trainings.
    Raises: ValueError: an unknown `run`, or not just one of the three.
    """

    about: str
    records: str
    run: str = ""
    made_by: str = ""
    was_made_by: str = ""
    seeds: int | None = None
    options: str = ""
    configs: Mapping[str, Any] = field(default_factory=dict)
    configs_from: Sequence[str] = ()
    timed: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.run and self.run not in RUNS:
            raise ValueError(f"run {self.run!r}: expected one of {', '.join(RUNS)}")
        if sum(map(bool, (self.run, self.made_by, self.was_made_by))) != 1:
            raise ValueError(f"study {self.about!r}: expected one of run, made_by, was_made_by")

    @property
    def committed(self) -> Path:
        """File or folder of the records that the page's table is made from."""
        return EXAMPLES / self.records


@dataclass(frozen=True)
class Paper:
    """A published system.

    Args:
        name: name of its YAML file.
        title: what it is called, authors, year.
        studies: experiments by name.
        claims: claims in the order of the table.
        settings: words that settings of claims name in braces.
    """

    name: str
    title: str
    studies: Mapping[str, Study]
    claims: Sequence[Claim]
    settings: Mapping[str, str]

    def path(self, study: str, folder: Path | None) -> Path:
        """Return the file of a study's records in a folder; None: the committed ones."""
        committed = self.studies[study].committed
        if folder is None:
            return committed
        return folder / self.name / (committed.name if committed.is_dir() else f"{study}.jsonl")

    def rows(
        self, folder: Path | None = None, studies: Sequence[str] | None = None
    ) -> list[tuple[str, ...]]:
        """Return the table's cells of each claim that records decide.

        Args: folder: None for the committed records.  studies: names; all by default.
        Raises: ValueError: a verdict is open, and nothing says what it would take.
        """
        rows = []
        for claim in self.claims:
            if studies is not None and claim.study not in studies:
                continue
            path = self.path(claim.study, folder)
            outcome = claim.outcome(path, self.studies[claim.study].committed)
            if outcome is None:
                continue
            to_tell = "; ".join(filter(None, (outcome.to_tell, claim.note)))
            if outcome.verdict == OPEN and not to_tell:
                raise ValueError(f"claim {claim.text!r}: open, and nothing says what it would take")
            setting = claim.setting.format(**self.settings, **outcome.fields)
            cells = setting, outcome.result, f"**{outcome.verdict}**", to_tell or "-"
            rows.append((claim.text, SOURCES[claim.by], *cells))
        return rows

    def configurations(self, study: str) -> list[str]:
        """Return the names of the trainings that a study's claims compare, without float32's."""
        pairs = [pair for claim in self.claims if claim.study == study for pair in claim.pairs]
        return [n for n in dict.fromkeys(n for pair in pairs for n in pair) if n != BASELINE]


def read_paper(name: str) -> Paper:
    """Return a paper of PAPERS. Raises ValueError: its YAML file is wrong."""
    content = yaml.safe_load((EXAMPLES / "papers" / f"{name}.yaml").read_text())
    try:
        studies = {key: Study(**fields) for key, fields in content["studies"].items()}
        claims = [Claim(**fields) for fields in content["claims"]]
        unknown = [claim.study for claim in claims if claim.study not in studies]
        if unknown:
            raise ValueError(f"study {unknown[0]!r}: expected one of {', '.join(studies)}")
    except (TypeError, ValueError) as error:
        raise ValueError(f"claims of {name}: {error}") from None
    return Paper(name, content["title"], studies, claims, content.get("settings", {}))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of cells as Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)
