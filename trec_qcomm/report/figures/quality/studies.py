"""Studies: records of paired seeds (examples/criteo/accuracy.py), and what each config changed.

Knows: the fields of a study's records. A study is the records whose options are equal.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, Protocol, TypeVar

from trec_qcomm.report.records import Record
from trec_qcomm.report.statistics import BASELINE, NULL, Change, paired_changes

_TRAINED = {
    "test": ("test", "on", "logloss"),
    "test_off": ("test", "off", "logloss"),
    "auc": ("test", "on", "auc"),
    "progressive": ("progressive_logloss",),
}
Options = Mapping[str, str]


class Fields(Protocol):
    """A record, or its fields."""

    def __getitem__(self, name: str, /) -> Any: ...

    def get(self, name: str, /) -> Any: ...


F = TypeVar("F", bound=Fields)


def by_options(records: Sequence[Record]) -> list[tuple[Options, list[Record]]]:
    """The studies among the records."""
    found: dict[tuple[tuple[str, str], ...], list[Record]] = {}
    for record in records:
        if record.kind == "study":
            options = {name: str(value) for name, value in record["options"].items()}
            found.setdefault(tuple(sorted(options.items())), []).append(record)
    return [(dict(options), own) for options, own in found.items()]


def title(options: Options) -> str:
    """4 ranks x 128, dim 16, dense layers by adam."""
    ranks, batch, dim = (options.get(n, "?") for n in ("ranks", "batch_size", "embedding_dim"))
    dense = options.get("dense_optimizer")
    return f"{ranks} ranks x {batch}, dim {dim}" + (f", dense layers by {dense}" if dense else "")


def by_config(records: Sequence[F]) -> dict[str, list[F]]:
    """Of one study. Names of equal configs are one, by the name of most records; where one name
    stands for two configs, each bears the beginning of its SHA-256."""
    found: dict[str, list[F]] = {}
    for r in records:
        alone = r["config"] in (BASELINE, NULL)  # by name, as the null run's config is float32's
        found.setdefault(r["config"] if alone else r["config_sha256"], []).append(r)
    most = {
        key: Counter(r["config"] for r in own).most_common(1)[0][0] for key, own in found.items()
    }
    twice = {name for name, count in Counter(most.values()).items() if count > 1}
    return {
        f"{most[key]} ({key[:8]})" if most[key] in twice else most[key]: own
        for key, own in found.items()
    }


def changes(own: Sequence[Fields], fp32: Sequence[Fields]) -> dict[str, Change]:
    """Paired changes of one config's records against fp32's, of the seeds that both have. That
    of eval_only is with the codec on against off, of fp32's model.

    Keys, where there are records of them: test, test_off, auc, progressive, eval_only.
    """
    trained, base = (
        {r["seed"]: r["training"] for r in of if r.get("training")} for of in (own, fp32)
    )
    pairs = {key: (_each(trained, path), _each(base, path)) for key, path in _TRAINED.items()}
    switched = {r["seed"]: r["eval_only"] for r in own if r["seed"] in base and r.get("eval_only")}
    pairs["eval_only"] = (_each(switched, ("on", "ne")), _each(switched, ("off", "ne")))
    found = {
        key: paired_changes({"own": ours, BASELINE: theirs}, BASELINE).get("own")
        for key, (ours, theirs) in pairs.items()
    }
    return {key: change for key, change in found.items() if change is not None}


def _each(by_seed: Mapping[int, Any], path: Sequence[str]) -> dict[int, float]:
    """The number that lies there, of every seed."""
    return {seed: reduce(getitem, path, fields) for seed, fields in by_seed.items()}
