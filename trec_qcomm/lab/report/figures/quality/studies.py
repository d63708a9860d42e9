"""Studies of quality: paired trainings, several seeds of each configuration.

Knows: the records of a study. A study is the records of one setup and number of ranks.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trec_qcomm.lab.records import Record, Scalar, StudyRecord
from trec_qcomm.lab.report.runs import config_id, grouped
from trec_qcomm.lab.study.gates import BASELINE, NULL


@dataclass(frozen=True)
class StudySetup:
    """What the trainings of a study have in common. Args: values: the records' `setup`, sorted."""

    num_ranks: int
    values: tuple[tuple[str, Scalar], ...]

    def get(self, name: str) -> Scalar | None:
        """Return a value of the records' `setup`; None where it is not there."""
        return dict(self.values).get(name)

    def __str__(self) -> str:
        """Return a title such as "4 ranks x 128, dim 16, dense layers by adam"."""
        batch, dim, dense = map(self.get, ("batch_size", "embedding_dim", "dense_optimizer"))
        ranks = f"{self.num_ranks} rank{'s' * (self.num_ranks != 1)}"
        parts = [ranks if batch is None else f"{ranks} x {batch}"]
        parts += [] if dim is None else [f"dim {dim}"]
        parts += [] if dense is None else [f"dense layers by {dense}"]
        return ", ".join(parts)


def by_setup(records: Sequence[Record]) -> dict[StudySetup, list[StudyRecord]]:
    """Return the studies among the records."""
    return grouped(
        (record for record in records if isinstance(record, StudyRecord)),
        lambda record: StudySetup(record.num_ranks, record.setup_key),
    )


def by_configuration(records: Sequence[StudyRecord]) -> dict[str, list[StudyRecord]]:
    """Return the records of one study by configuration.

    Names of equal configs are one, by the name of most records. Where one name stands for two
    configs, each bears the beginning of its hash.
    """

    def key(record: StudyRecord) -> str:
        # The null run has float32's config, so only its name tells it apart.
        is_alone = record.configuration in (BASELINE, NULL)
        return record.configuration if is_alone else config_id(record)

    groups = grouped(records, key)
    names = {
        key: Counter(record.configuration for record in group).most_common(1)[0][0]
        for key, group in groups.items()
    }
    ambiguous = {name for name, count in Counter(names.values()).items() if count > 1}
    return {
        f"{names[key]} ({key[:8]})" if names[key] in ambiguous else names[key]: group
        for key, group in groups.items()
    }
