"""Reading of a config: YAML or a dict -> frozen dataclasses that hold codecs.

Errors name file, field and allowed values.

    embedding:                    # the first rule with a pattern that matches a table holds for it
      - tables: ["*"]             # shell patterns on table names
        forward: {codec: rowwise, bits: 4}
        backward: {codec: rowwise, bits: 4, rounding: stochastic}
        intra:                    # optional: the hop inside a node of table_row_wise and
          forward: {codec: cast, dtype: bf16}    # grid_shard tables; identity if not given
        unique_bags: auto         # optional: send equal bags of ids once; true | false | auto
        schedule: {kind: step}    # optional: coarser error bounds at first, see control.schedule
        classes: {every: 1000}    # optional: error bounds from the rows, see control.error_bound
        refresh: {every: 1000, density: 0.1}    # optional: topk's threshold, see control.threshold;
                                  # with schedule: {kind: exponential}, a larger density at first
        error_feedback: {backward_rows: 100000}    # optional: residuals by id, see TableRule
    dense:                        # optional: the all-reduce of the replicated part's gradients
      codec: {codec: rowwise, bits: 4}    # or a list of rules, each with `parameters: [patterns]`
      error_feedback: true        # and the other fields of a GradientRule; with `algorithm:
                                  # hierarchical` `cross: {codec}`, `intra: {codec}` in its place
    data_parallel:                # optional: the all-reduce of DATA_PARALLEL tables' gradients
      codec: {codec: cast, dtype: bf16}
    ids: {codec: packed}          # optional: ids and lengths in few bits, exactly
    sync: {codec: {codec: rowwise, bits: 8}, every: 4}    # optional: replicas, see SyncRule
    seed: 0                       # seed of stochastic rounding
    sizes: announced              # or slots: sizes that depend on the data, without a message
    debug:                        # optional: the numeric debugger, see config.debugging
      every: 100
    guard:                        # optional: other codecs while training, see config.guarding
      every: 200
    measure_error: false          # record max_abs_err of every table in stats(); slow

Where a codec is expected, its name alone is short for a mapping with one key: `codec: float6` is
`codec: {codec: float6}`, and `tables: "*"` is `tables: ["*"]`. Anchors and merge keys
(`<<: *name`) work; a key at the top level that begins with `x-` is a place for anchors.

Knows: codec names and fields through the registry. Does not know: TorchRec, process groups.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from trec_qcomm.codecs import EncoderLink
from trec_qcomm.config.debugging import DebugRule
from trec_qcomm.config.gradients import AllReduceRule, GradientRule, LowRank, TableGradientRule
from trec_qcomm.config.guarding import GuardRule
from trec_qcomm.config.ids import IdRule
from trec_qcomm.config.sync import SyncRule
from trec_qcomm.config.tables import HopCodecs, RowFeedback, TableRule
from trec_qcomm.config.tree import Config
from trec_qcomm.config.yaml_text import read_yaml
from trec_qcomm.control.cost_model import Link
from trec_qcomm.control.error_bound import OnlineClasses
from trec_qcomm.control.schedule import schedule_from_dict
from trec_qcomm.control.threshold import ThresholdRefresh
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.registry import codec_names, codec_type

T = TypeVar("T")
R = TypeVar("R", bound=AllReduceRule)


def load_config(path: str | Path) -> Config:
    """Read a config from a YAML file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: naming file, field and allowed values.
    """
    data = read_yaml(path)
    try:
        return config_from_dict(data, source=str(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def config_from_dict(data: object, *, source: str = "config") -> Config:
    """Return the config that a parsed YAML document describes.

    Args:
        data: the document, a mapping such as {"embedding": [...], "dense": {...}}.
        source: where it comes from, for errors.

    Raises: ValueError: naming the field and what is allowed there.
    """
    if isinstance(data, Mapping):  # what begins with x- only holds anchors
        data = {key: value for key, value in data.items() if not str(key).startswith("x-")}
    values = _checked_keys(Config, data, where="", hidden=("source",))
    rules = values.get("embedding", [])
    if not isinstance(rules, list | tuple):
        raise ValueError(f"embedding: expected a list of rules, got {rules!r}")
    if "embedding" in values and not rules:
        raise ValueError("embedding: expected a list of one or more rules")
    values["embedding"] = tuple(_rule(rule, f"embedding[{n}]") for n, rule in enumerate(rules))
    if "dense" in values:
        values["dense"] = _dense_rules(values["dense"])
    if "data_parallel" in values:
        tables = values["data_parallel"]
        values["data_parallel"] = _gradient_rule(TableGradientRule, tables, "data_parallel")
    if "ids" in values:
        values["ids"] = _nested(IdRule, values["ids"], "ids")
    if "sync" in values:
        values["sync"] = _sync_rule(values["sync"], "sync")
    if "debug" in values:
        values["debug"] = _debug_rule(values["debug"], "debug")
    if "guard" in values:
        values["guard"] = _guard_rule(values["guard"], "guard")
    return Config(**values, source=source)


def codec_from_dict(data: object, *, where: str = "codec") -> Codec:
    """Return the codec that a mapping, or a name alone, describes; `codec_to_dict` undoes it.

    Args:
        data: {"codec": name, and fields}, or a name.
        where: name of the field that holds it, for errors.

    Raises: ValueError: naming the field under `where` and the allowed values.
    """
    if isinstance(data, str):
        data = {"codec": data}
    if not isinstance(data, Mapping) or "codec" not in data:
        raise ValueError(
            f"{where}: expected the name of a codec or {{codec: name, ...}}; "
            f"codecs: {', '.join(codec_names())}"
        )
    kind = _located(where, lambda: codec_type(str(data["codec"])))
    options = {key: value for key, value in data.items() if key != "codec"}
    values = _checked_keys(kind, options, where=f"{where}.")
    return _located(where, lambda: kind(**values))


def _rule(data: object, where: str) -> TableRule:
    values = _checked_keys(TableRule, data, where=f"{where}.")
    for name in ("forward", "backward"):
        values[name] = codec_from_dict(values[name], where=f"{where}.{name}")
    if "schedule" in values:
        values["schedule"] = schedule_from_dict(values["schedule"], where=f"{where}.schedule")
    for name, kind in _NESTED_IN_TABLE_RULES:
        if name in values:
            values[name] = _nested(kind, values[name], f"{where}.{name}")
    if "intra" in values:
        hop = _checked_keys(HopCodecs, values["intra"], where=f"{where}.intra.")
        intra = {n: codec_from_dict(c, where=f"{where}.intra.{n}") for n, c in hop.items()}
        values["intra"] = _located(f"{where}.intra", lambda: HopCodecs(**intra))
    return _located(where, lambda: TableRule(**values))


_NESTED_IN_TABLE_RULES = (
    ("classes", OnlineClasses),
    ("refresh", ThresholdRefresh),
    ("link", EncoderLink),
    ("error_feedback", RowFeedback),
)
_NESTED_IN_GRADIENT_RULES = (
    ("link", Link),
    ("refresh", ThresholdRefresh),
    ("low_rank", LowRank),
)


def _dense_rules(data: object) -> GradientRule | list[GradientRule]:
    """Return one rule, or the list that the config has."""
    if not isinstance(data, list | tuple):
        return _gradient_rule(GradientRule, data, "dense")
    return [_gradient_rule(GradientRule, rule, f"dense[{n}]") for n, rule in enumerate(data)]


def _gradient_rule(kind: type[R], data: object, where: str) -> R:
    name = "codec"
    if kind is GradientRule and isinstance(data, Mapping) and "cross" in data:
        name, data = "cross", _renamed(data, where)
    values = _checked_keys(kind, data, where=f"{where}.")
    values["codec"] = codec_from_dict(values["codec"], where=f"{where}.{name}")
    if values.get("intra") is not None:
        values["intra"] = codec_from_dict(values["intra"], where=f"{where}.intra")
    for name, nested in _NESTED_IN_GRADIENT_RULES:
        if name in values:
            values[name] = _nested(nested, values[name], f"{where}.{name}")
    return _located(where, lambda: kind(**values))


def _sync_rule(data: object, where: str) -> SyncRule:
    values = _checked_keys(SyncRule, data, where=f"{where}.")
    for name in ("codec", "optimizer"):
        if name in values:
            values[name] = codec_from_dict(values[name], where=f"{where}.{name}")
    return _located(where, lambda: SyncRule(**values))


def _renamed(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the mapping with `codec` in place of `cross`, its name beside `intra`."""
    if data.get("algorithm") != "hierarchical":
        raise ValueError(f"{where}.cross: only with algorithm: hierarchical; else it is codec")
    if "codec" in data:
        raise ValueError(f"{where}.cross: is the same as codec; give one of them")
    return {"codec" if key == "cross" else key: value for key, value in data.items()}


def _debug_rule(data: object, where: str) -> DebugRule:
    values = _checked_keys(DebugRule, data, where=f"{where}.")
    values["shadow"] = _codecs(values.get("shadow", []), f"{where}.shadow")
    return _located(where, lambda: DebugRule(**values))


def _guard_rule(data: object, where: str) -> GuardRule:
    values = _checked_keys(GuardRule, data, where=f"{where}.")
    for name in ("ladder", "backward_ladder"):
        if values.get(name) is not None:
            values[name] = _codecs(values[name], f"{where}.{name}")
    return _located(where, lambda: GuardRule(**values))


def _codecs(data: object, where: str) -> tuple[Codec, ...]:
    if not isinstance(data, list | tuple):
        raise ValueError(f"{where}: expected a list of codecs, got {data!r}")
    return tuple(codec_from_dict(codec, where=f"{where}[{n}]") for n, codec in enumerate(data))


def _nested(kind: type[Any], data: object, where: str) -> Any:
    values = _checked_keys(kind, data, where=f"{where}.")
    if "schedule" in values:
        values["schedule"] = schedule_from_dict(values["schedule"], where=f"{where}.schedule")
    return _located(where, lambda: kind(**values))


def _located(where: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _checked_keys(
    kind: type[Any], data: object, *, where: str, hidden: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the mapping as keyword arguments of a dataclass, none unknown and none missing."""
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
