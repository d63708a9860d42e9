"""Sharding plans: files of configs/plans, and TorchRec's explicit plans made of them.

    sharding: table_wise         # of the tables that no rule takes; see SHARDINGS, and `planned`
    rules:                       # optional; the first rule that takes a table holds
      - tables: ["t_cat_1*"]     # shell patterns on table names (default: all of them) ...
        below_rows: 100          # ... that have fewer rows ...
        largest: 3               # ... and are the largest that no earlier rule took
        sharding: column_wise

Knows: table sizes, ranks, nodes. Does not know: the data, the codec, the planner (planned.py).
Shapes: tables of [rows, D], W ranks on N nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import yaml
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ModuleSharder, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from plans.generators import SHARDINGS, TWO_LEVEL, Generators, Place, shard

FOLDER = Path(__file__).parents[3] / "configs" / "plans"
PLANNED = "planned"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One sharding for some tables, as a plan file has it."""

    sharding: str
    tables: tuple[str, ...] = ("*",)
    below_rows: int | None = None
    largest: int | None = None

    def __post_init__(self) -> None:
        _check_choice("sharding", self.sharding, SHARDINGS)
        if not self.tables or not all(type(name) is str and name for name in self.tables):
            raise ValueError(f"tables: expected a list of patterns, got {self.tables!r}")
        for name in ("below_rows", "largest"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name}: {value!r} is not an integer above 0")

    def take(self, by_size: list[EmbeddingBagConfig]) -> list[EmbeddingBagConfig]:
        """Return those of the tables, the largest first, that the rule is about."""
        tables = [
            table
            for table in by_size
            if any(fnmatchcase(table.name, pattern) for pattern in self.tables)
            and (self.below_rows is None or table.num_embeddings < self.below_rows)
        ]
        return tables[: self.largest]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What the planner is to believe.

    Args:
        inter_node_gb_s, intra_node_gb_s: GB/s of a rank's links between and inside nodes.
        encode_gb_s, decode_gb_s: GB/s of float32 rows of every codec; None: measured here.
        measured: file with what was measured of the tables (QComm.estimator), relative to the plan
            file; None: sizes that depend on the data have their upper bound.
    """

    inter_node_gb_s: float
    intra_node_gb_s: float
    encode_gb_s: float | None = None
    decode_gb_s: float | None = None
    measured: str | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "measured":
                if value is not None and (type(value) is not str or not value):
                    raise ValueError(f"measured: {value!r} is not the name of a file")
            elif value is not None and (type(value) not in (int, float) or not value > 0):
                raise ValueError(f"{item.name}: {value!r} is not a number above 0")
        if (self.encode_gb_s is None) != (self.decode_gb_s is None):
            raise ValueError("encode_gb_s, decode_gb_s: give both or none")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan file. `cluster` is for, and only for, the sharding `planned`, which has no rules."""

    sharding: str
    rules: tuple[Rule, ...] = ()
    cluster: Cluster | None = None
    source: str = field(default="plan", compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_choice("sharding", self.sharding, (*SHARDINGS, PLANNED))
        if (self.sharding == PLANNED) != (self.cluster is not None):
            raise ValueError(f"cluster: needed for sharding {PLANNED}, and for no other")
        if self.sharding == PLANNED and self.rules:
            raise ValueError(f"rules: not with sharding {PLANNED}")

    @property
    def measured_path(self) -> Path | None:
        """Path of what was measured of the tables."""
        if self.cluster is None or self.cluster.measured is None:
            return None
        return Path(self.source).parent / self.cluster.measured

    @property
    def depends_on_nodes(self) -> bool:
        """Whether the plan depends on how ranks are grouped into nodes."""
        kinds = {self.sharding, *(rule.sharding for rule in self.rules)}
        return not kinds.isdisjoint({PLANNED, *TWO_LEVEL})


def plan_names() -> list[str]:
    """Return the names of the plans in configs/plans, for --plan."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_plan(name_or_path: str) -> Plan:
    """Return a plan of configs/plans by its name, or any file.

    Raises: ValueError: naming file, field and choices.
    """
    path = FOLDER / f"{name_or_path}.yaml"
    if name_or_path not in plan_names():
        path = Path(name_or_path)
        if not path.is_file():
            names = ", ".join(plan_names())
            raise ValueError(f"plan {name_or_path!r}: neither a file nor one of {names}")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        values = _keys(Plan, data, "", hidden=("source",))
        rules = values.pop("rules", [])
        if not isinstance(rules, list):
            raise ValueError("rules: expected a list")
        values["rules"] = tuple(_part(Rule, rule, f"rules[{n}].") for n, rule in enumerate(rules))
        if "cluster" in values:
            values["cluster"] = _part(Cluster, values["cluster"], "cluster.")
        plan = Plan(**values, source=str(path))
        if plan.measured_path is not None and not plan.measured_path.is_file():
            raise ValueError(f"cluster.measured: there is no file {plan.measured_path}")
        return plan
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def build_plan(
    model: nn.Module, plan: Plan, *, world_size: int, ranks_per_node: int, device_type: str
) -> ShardingPlan:
    """Return TorchRec's plan for every EmbeddingBagCollection of the model; not for `planned`.

    Raises: ValueError: a pattern that matches no table, columns that cannot be cut, or a two-level
        sharding on one node.
    """
    place = Place(world_size, ranks_per_node)
    collections = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, EmbeddingBagCollection)
    }
    return ShardingPlan(
        plan={
            name: _build(module, plan, place, device_type) for name, module in collections.items()
        }
    )


def choose_sharding(
    tables: Iterable[EmbeddingBagConfig], plan: Plan, *, place: Place
) -> Generators:
    """Return how each table is sharded, by its name. Raises ValueError like `build_plan`."""
    rest = sorted(tables, key=lambda table: -table.num_embeddings)
    chosen: Generators = {}
    try:
        _check_patterns(plan.rules, [table.name for table in rest])
        for rule in plan.rules:
            chosen |= shard(rule.take(rest), rule.sharding, place)
            rest = [table for table in rest if table.name not in chosen]
        return chosen | shard(rest, plan.sharding, place)
    except ValueError as error:
        raise ValueError(f"{plan.source}: {error}") from error


def _check_patterns(rules: Iterable[Rule], names: list[str]) -> None:
    for number, rule in enumerate(rules):
        for pattern in rule.tables:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"rules[{number}].tables: {pattern!r} matches no table; "
                    f"the model has: {', '.join(names)}"
                )


def _build(
    module: EmbeddingBagCollection, plan: Plan, place: Place, device_type: str
) -> EmbeddingModuleShardingPlan:
    return construct_module_sharding_plan(
        module,
        choose_sharding(module.embedding_bag_configs(), plan, place=place),
        sharder=cast(ModuleSharder[nn.Module], EmbeddingBagCollectionSharder()),
        local_size=place.ranks_per_node,
        world_size=place.world_size,
        device_type=device_type,
    )


def _part(kind: type[Any], data: object, where: str) -> Any:
    values = _keys(kind, data, where)
    if isinstance(values.get("tables"), list):
        values["tables"] = tuple(values["tables"])
    elif "tables" in values:
        raise ValueError(f"{where}tables: expected a list of patterns, got {values['tables']!r}")
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}{error}") from error


def _keys(
    kind: type[Any], data: object, where: str, hidden: tuple[str, ...] = ()
) -> dict[str, Any]:
    known = {item.name: item for item in fields(kind) if item.name not in hidden}
    allowed = ", ".join(known)
    if not isinstance(data, Mapping):
        raise ValueError(
            f"{where.removesuffix('.') or 'top level'}: expected a mapping of {allowed}"
        )
    for key in data:
        if key not in known:
            raise ValueError(f"{where}{key}: unknown key; allowed: {allowed}")
    for name, item in known.items():
        if name not in data and item.default is MISSING:
            raise ValueError(f"{where}{name}: missing")
    return dict(data)


def _check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    if value not in tuple(choices):
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(choices)}")
