"""Configuration: YAML <-> frozen dataclasses that hold codecs. Errors name file, field and choices.

    embedding:                    # the first rule with a pattern that matches a table holds for it
      - tables: ["*"]             # shell patterns on table names
        forward: {codec: rowwise, bits: 4}
        backward: {codec: rowwise, bits: 4, rounding: stochastic}
        intra:                    # optional: the hop inside a node of table_row_wise and
          forward: {codec: cast, dtype: bf16}    # grid_shard tables; identity if not given
        unique_bags: auto         # optional: send equal bags of ids once; true | false | auto
        schedule: {kind: step}    # optional: coarser error bounds at first, see control.schedule
        classes: {every: 1000}    # optional: error bounds from the rows, see control.error_bound
        refresh: {every: 1000, density: 0.1}    # optional: topk's threshold, see control.threshold
    seed: 0                       # of stochastic rounding
    measure_error: false          # record max_abs_err of every table in stats(); slow

Knows: codec names and fields through the registry. Does not know: TorchRec, process groups.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from trec_qcomm.codecs import ErrorBounded, Identity, TopK  # the package registers all codecs
from trec_qcomm.control.error_bound import OnlineClasses
from trec_qcomm.control.schedule import Schedule, schedule_from_dict, schedule_to_dict
from trec_qcomm.control.threshold import ThresholdRefresh
from trec_qcomm.core.codec import Codec, MaskUse, check_choice, mask_use
from trec_qcomm.core.registry import codec_names, codec_type

T = TypeVar("T")
UniqueBagsChoice = bool | Literal["auto"]


def _check_codecs(pair: "HopCodecs | TableRule") -> None:
    for name in ("forward", "backward"):
        codec = getattr(pair, name)
        if isinstance(codec, type) or not isinstance(codec, Codec):
            raise ValueError(f"{name}: expected a codec, got {codec!r}")
    if mask_use(pair.forward) is MaskUse.READS:
        raise ValueError(f"forward: {pair.forward.name} is for backward only")
    if mask_use(pair.backward) is MaskUse.READS and mask_use(pair.forward) is not MaskUse.WRITES:
        raise ValueError(
            f"backward: {pair.backward.name} sends the columns that forward kept, "
            f"so forward must be topk, not {pair.forward.name}"
        )


@dataclass(frozen=True, kw_only=True)
class HopCodecs:
    """Codecs of one hop. Args: forward: of rows.  backward: of their gradients."""

    forward: Codec = field(default=Identity())
    backward: Codec = field(default=Identity())

    def __post_init__(self) -> None:
        _check_codecs(self)


@dataclass(frozen=True, kw_only=True)
class TableRule:
    """Codecs of the embedding exchanges for all tables that match one of the patterns.

    Args: tables: shell patterns (`*`, `?`, `[..]`), case-sensitive.  forward: codec of rows.
        backward: codec of their gradients.  intra: codecs of the hop inside a node, which only
        table_row_wise and grid_shard tables have; `forward` and `backward` are then those of the
        hop between nodes.  unique_bags: look up and send equal bags of a batch once. Exact; true
        is an error where it would not be, auto is used where it is and where bags repeat.
        schedule: multiplies the error bound of `forward`.  classes: sets it, table by table, from
        the rows that each rank sends.  refresh: sets the threshold of a forward topk likewise.
    """

    tables: tuple[str, ...]
    forward: Codec
    backward: Codec
    intra: HopCodecs = field(default=HopCodecs())
    unique_bags: UniqueBagsChoice = False
    schedule: Schedule | None = None
    classes: OnlineClasses | None = None
    refresh: ThresholdRefresh | None = None

    def __post_init__(self) -> None:
        if type(self.tables) is not tuple or not self.tables:
            raise ValueError("tables: expected a list of one or more patterns")
        if not all(type(pattern) is str and pattern for pattern in self.tables):
            raise ValueError("tables: expected a list of one or more patterns")
        _check_codecs(self)
        if not isinstance(self.intra, HopCodecs):
            raise ValueError(f"intra: expected HopCodecs, got {self.intra!r}")
        check_choice("unique_bags", self.unique_bags, (True, False, "auto"))
        self._check_error_bounds()

    def _check_error_bounds(self) -> None:
        has_threshold = isinstance(self.forward, TopK) and self.forward.threshold is not None
        if self.refresh is not None and not has_threshold:
            raise ValueError("refresh: only for forward {codec: topk, threshold: ...}")
        for name in ("schedule", "classes"):
            if getattr(self, name) is not None and not isinstance(self.forward, ErrorBounded):
                raise ValueError(
                    f"{name}: only forward {{codec: error_bounded}} has an error bound"
                )
        if not isinstance(self.forward, ErrorBounded) or self.forward.mode != "rel":
            if self.classes is not None:
                raise ValueError("classes: only for forward error_bounded of mode rel")
            return
        largest = self.classes.loose if self.classes is not None else self.forward.bound
        factor = self.schedule.multiplier(0) if self.schedule is not None else 1.0
        if largest * factor >= 1:
            raise ValueError(f"schedule: starts with a relative bound of {largest * factor:g} >= 1")

    def matches(self, table: str) -> bool:
        """Whether this rule speaks of that table."""
        return any(fnmatchcase(table, pattern) for pattern in self.tables)


@dataclass(frozen=True, kw_only=True)
class Config:
    """One way to train.

    Args: embedding: rules, the first match holds.  seed: of stochastic rounding, 0..2^63 - 1.
        measure_error: see the module.  source: file name, for errors.
    """

    embedding: tuple[TableRule, ...]
    seed: int = 0
    measure_error: bool = False
    source: str = "config"

    def __post_init__(self) -> None:
        if not self.embedding or not all(isinstance(r, TableRule) for r in self.embedding):
            raise ValueError("embedding: expected a list of one or more rules")
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed: {self.seed!r} is not an integer in 0..2^63 - 1")
        if type(self.measure_error) is not bool:
            raise ValueError(f"measure_error: {self.measure_error!r} is not true or false")

    def rule_for(self, table: str) -> TableRule:
        """The rule of that table. Raises ValueError where none matches."""
        for rule in self.embedding:
            if rule.matches(table):
                return rule
        known = ", ".join(pattern for rule in self.embedding for pattern in rule.tables)
        raise ValueError(
            f"{self.source}: embedding: no pattern matches table {table!r}; patterns: {known}"
        )

    def check_patterns(self, tables: Iterable[str]) -> None:
        """Raise ValueError at the first pattern that matches none of the model's tables."""
        names = sorted(tables)
        for number, rule in enumerate(self.embedding):
            for pattern in rule.tables:
                if not any(fnmatchcase(name, pattern) for name in names):
                    raise ValueError(
                        f"{self.source}: embedding[{number}].tables: {pattern!r} matches no "
                        f"table; the model has: {', '.join(names)}"
                    )


def load_config(path: str | Path) -> Config:
    """Read a YAML file. Raises ValueError naming file, field and allowed values."""
    try:
        data = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except _UNREADABLE as error:
        raise ValueError(f"{path}: cannot be read: {error or type(error).__name__}") from error
    try:
        return config_from_dict(data, source=str(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def config_from_dict(data: object, *, source: str = "config") -> Config:
    """A parsed YAML document -> Config. Raises ValueError naming field and allowed values."""
    values = _checked_keys(Config, data, where="", hidden=("source",))
    rules = values["embedding"]
    if not isinstance(rules, list):
        raise ValueError(f"embedding: expected a list of rules, got {rules!r}")
    values["embedding"] = tuple(_rule(rule, f"embedding[{n}]") for n, rule in enumerate(rules))
    return Config(**values, source=source)


def config_to_dict(config: Config) -> dict[str, Any]:
    """The inverse of `config_from_dict`, ready for YAML."""
    rules = [_rule_to_dict(rule) for rule in config.embedding]
    return {"embedding": rules, "seed": config.seed, "measure_error": config.measure_error}


def _rule_to_dict(rule: TableRule) -> dict[str, Any]:
    """What differs from the default, and always the codecs."""
    data: dict[str, Any] = {"tables": list(rule.tables)} | _pair_to_dict(rule)
    if rule.intra != HopCodecs():
        data["intra"] = _pair_to_dict(rule.intra)
    if rule.unique_bags is not False:
        data["unique_bags"] = rule.unique_bags
    if rule.schedule is not None:
        data["schedule"] = schedule_to_dict(rule.schedule)
    for name in ("classes", "refresh"):
        control = getattr(rule, name)
        if control is not None:
            data[name] = asdict(control)
    return data


def _pair_to_dict(pair: HopCodecs | TableRule) -> dict[str, Any]:
    return {"forward": codec_to_dict(pair.forward), "backward": codec_to_dict(pair.backward)}


def codec_to_dict(codec: Codec) -> dict[str, Any]:
    """A codec as its YAML mapping: its name and all its fields."""
    own = {f.name: getattr(codec, f.name) for f in fields(codec)}  # type: ignore[arg-type]
    return {"codec": codec.name, **own}


def codec_from_dict(data: object, *, where: str = "codec") -> Codec:
    """The inverse. Raises ValueError naming the field under `where` and the allowed values."""
    if not isinstance(data, dict) or "codec" not in data:
        raise ValueError(f"{where}: expected {{codec: one of {', '.join(codec_names())}, ...}}")
    kind = _located(where, lambda: codec_type(str(data["codec"])))
    options = {key: value for key, value in data.items() if key != "codec"}
    values = _checked_keys(kind, options, where=f"{where}.")
    return _located(where, lambda: kind(**values))


def _rule(data: object, where: str) -> TableRule:
    values = _checked_keys(TableRule, data, where=f"{where}.")
    tables = values["tables"]
    values["tables"] = tuple(tables) if isinstance(tables, list) else (tables,)
    for name in ("forward", "backward"):
        values[name] = codec_from_dict(values[name], where=f"{where}.{name}")
    if "schedule" in values:
        values["schedule"] = schedule_from_dict(values["schedule"], where=f"{where}.schedule")
    if "classes" in values:
        own = _checked_keys(OnlineClasses, values["classes"], where=f"{where}.classes.")
        values["classes"] = _located(f"{where}.classes", lambda: OnlineClasses(**own))
    if "refresh" in values:
        own = _checked_keys(ThresholdRefresh, values["refresh"], where=f"{where}.refresh.")
        values["refresh"] = _located(f"{where}.refresh", lambda: ThresholdRefresh(**own))
    if "intra" in values:
        hop = _checked_keys(HopCodecs, values["intra"], where=f"{where}.intra.")
        intra = {n: codec_from_dict(c, where=f"{where}.intra.{n}") for n, c in hop.items()}
        values["intra"] = HopCodecs(**intra)
    return _located(where, lambda: TableRule(**values))


def _located(where: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _checked_keys(
    kind: type[Any], data: object, *, where: str, hidden: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The mapping as keyword arguments of a dataclass, none unknown and none missing."""
    known = {f.name: f for f in fields(kind) if f.name not in hidden}
    if not isinstance(data, Mapping):
        place = where.removesuffix(".") or "top level"
        raise ValueError(f"{place}: expected a mapping of {', '.join(known)}")
    for key in data:
        if key not in known:
            allowed = ", ".join(known) or "none"
            raise ValueError(f"{where}{key}: unknown key; allowed: {allowed}")
    for name, known_field in known.items():
        if name not in data and known_field.default is MISSING:
            raise ValueError(f"{where}{name}: missing")
    return dict(data)


# What PyYAML raises on a bad scalar or nesting, beside YAMLError.
_UNREADABLE = (
    OSError,
    yaml.YAMLError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    RecursionError,
)


class _UniqueKeyLoader(yaml.SafeLoader):
    """Safe YAML in which a repeated key is an error, not the last one's victory."""


def _unique_mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is not a word", key_node.start_mark
            )
        if key in mapping:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is given twice", key_node.start_mark
            )
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)
