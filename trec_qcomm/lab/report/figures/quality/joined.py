"""Quality of a study joined with the bytes of runs: where both have a config that means the same.

The two were mostly measured in different setups: quality takes 50 trainings of a small model. So
whoever shows both says both setups.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trec_qcomm.lab.records import Record, StudyRecord
from trec_qcomm.lab.report.figures.quality import studies
from trec_qcomm.lab.report.figures.quality.studies import StudySetup
from trec_qcomm.lab.report.runs import (
    Run,
    Setup,
    baseline_of,
    by_configuration,
    by_setup,
    config_id,
)
from trec_qcomm.lab.study.gates import BASELINE, NULL, PASS
from trec_qcomm.lab.study.paired import Change
from trec_qcomm.lab.study.verdicts import Rules, judge


@dataclass(frozen=True)
class Point:
    """A configuration with its quality, and its bytes where they are known.

    Args:
        name: name in the study, or among the runs where there is no study.
        configuration: name of the runs with its bytes; None where there are none.
        nbytes: bytes that a host sends in a step.
        change: change of the study's main metric, in percent.
        gate: verdict on a study's trainings.
    """

    name: str
    configuration: str | None
    nbytes: float | None
    change: Change
    gate: str = ""


@dataclass(frozen=True)
class JoinedStudy:
    """A study whose configurations have bytes.

    Args:
        metric: main metric: log loss, or where that does not count the first one that does.
        null: change of the null run, the noise.
    """

    setup: StudySetup
    points: Sequence[Point]
    null: Change | None
    metric: str = "logloss"


@dataclass(frozen=True)
class Passing:
    """A configuration that passes the gate in every study that has it."""

    setups: Sequence[StudySetup]

    def described(self, setup: Setup) -> str:
        """Return a phrase that says where quality was shown, for bytes or times of a setup."""
        is_other = any(
            study.num_ranks != setup.num_ranks
            or any(study.get(n) != setup.get(n) for n in ("batch_size", "embedding_dim"))
            for study in self.setups
        )
        where = " and ".join(dict.fromkeys(map(str, self.setups)))
        return f"quality shown to be kept ({'in another setup, ' * is_other}{where})"


def bytes_source(records: Sequence[Record], runs: Sequence[Run]) -> list[Run]:
    """Return the runs of the one setup whose bytes are joined with studies.

    It is the setup that has most configs of the studies; networks come before trainings, fewer
    hosts before more.
    """
    wanted = {config_id(record) for record in records if isinstance(record, StudyRecord)}
    source: list[Run] = []
    best_rank = (0, False, 0)
    for setup, group in by_setup(runs).items():
        counted = [run for run in group if run.sent_nbytes is not None]
        num_joined = len({config_id(run.record) for run in counted} & wanted)
        rank = (num_joined, setup.is_network, -setup.num_ranks)
        if num_joined and (not source or rank > best_rank):
            source, best_rank = counted, rank
    return source


def joined_studies(records: Sequence[Record], source: Sequence[Run]) -> list[JoinedStudy]:
    """Return every study that has trainings, with the bytes of the runs of `source`."""
    trained = [r for r in records if isinstance(r, StudyRecord) and r.training]
    return [
        _joined(setup, group, source) for setup, group in studies.by_setup(trained).items()
    ]  # fmt: skip


def _joined(
    setup: StudySetup, records: Sequence[StudyRecord], source: Sequence[Run]
) -> JoinedStudy:
    runs_by_config = {config_id(run.record): run for run in source}
    baseline = baseline_of(run.configuration for run in source)
    groups, points = studies.by_configuration(records), []
    rules = Rules.from_record(records[-1])
    metrics = list(rules.gated("training"))
    metric = "logloss" if "logloss" in metrics or not metrics else metrics[0]
    for name, group in groups.items():
        verdict = judge(group, groups.get(BASELINE, []), rules, "training")
        if verdict is None:
            continue
        run = runs_by_config.get(config_id(group[0])) if name != NULL else None
        if name == BASELINE and run is None and baseline:  # plain TorchRec sends the same rows
            run = by_configuration(source)[baseline][0]
        nbytes, configuration = (run.sent_nbytes, run.configuration) if run else (None, None)
        change = verdict.changes[metric]
        points.append(Point(name, configuration, nbytes, change, verdict.text))
    null = next((point.change for point in points if point.name == NULL), None)
    points = [point for point in points if point.name != NULL]
    return JoinedStudy(setup, points, null, metric)


def passing(records: Sequence[Record], runs: Sequence[Run]) -> dict[str, Passing]:
    """Return the configurations of runs that pass the gate in every study that has them."""
    verdicts: dict[str, list[tuple[str, StudySetup]]] = {}
    for study in joined_studies(records, bytes_source(records, runs)):
        for point in study.points:
            if point.configuration and point.name != BASELINE:
                verdict = (point.gate, study.setup)
                verdicts.setdefault(point.configuration, []).append(verdict)
    return {
        configuration: Passing([setup for _, setup in group])
        for configuration, group in verdicts.items() if all(gate == PASS for gate, _ in group)
    }  # fmt: skip


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other beats in both numbers (less is better), by the first one."""
    front: list[tuple[float, float]] = []
    for point in sorted(set(points)):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front
