"""Reading of a config: YAML or a dict -> frozen dataclasses that hold codecs.

Errors name file, field and allowed values.

    embedding:                    # the first rule with a pattern that matches a table holds for it
      - tables: ["*"]             # shell patterns on table names
        forward: {codec: rowwise, bits: 4}
        backward: {codec: rowwise, bits: 4, rounding: stochastic}
        intra:                    # optional: the hop inside a node of table_row_wise and
          forward: {codec: cast, dtype: bf16}    # grid_shard tables; identity if not given
        unique_bags: auto         # optional: send equal bags of ids once; true | false | auto
        schedule: {kind: step}    # optional: coarser error bounds at first
        classes: {every: 1000}    # optional: error bounds from the rows
        refresh: {every: 1000, density: 0.1}    # optional: topk's threshold;
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
    debug:                        # optional: the numeric debugger, see lab.debug.rule
      every: 100
    guard:                        # optional: other codecs while training, see lab.guard.rule
      every: 200
    measure_error: false          # record max_abs_err of every table in stats(); slow

Where a codec is expected, its name alone is short for a mapping with one key: `codec: float6` is
`codec: {codec: float6}`, and `tables: "*"` is `tables: ["*"]`. Anchors and merge keys
(`<<: *name`) work; a key at the top level that begins with `x-` is a place for anchors.

Knows: codec names and fields through the registry. Does not know: TorchRec, process groups.
"""

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from trec_qcomm.config.config import Config
from trec_qcomm.config.gradients import GradientRule
from trec_qcomm.config.section import Section, section_type
from trec_qcomm.config.yaml_text import read_yaml
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.registry import codec_names, codec_type

T = TypeVar("T")


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
    values = _fields_of(Config, data, where="", hidden=("source",))
    if "embedding" in values and not values["embedding"]:
        raise ValueError("embedding: expected a list of one or more rules")
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
    codec: Codec = settings_from_dict(kind, options, where)
    return codec


def settings_from_dict(kind: type[Any], data: object, where: str) -> Any:
    """Return settings from a mapping of their fields; `settings_to_dict` undoes it.

    Args: kind: dataclass of the settings.  where: name of the field that holds them, for errors.
    Raises: ValueError: naming the field under `where` and the allowed values.
    """
    if issubclass(kind, Section) and kind.kinds:
        kind, data = _chosen(kind, data, where)
    if kind is GradientRule and isinstance(data, Mapping) and "cross" in data:
        data = _renamed(data, where)
        values = _fields_of(kind, data, where=f"{where}.", said={"codec": "cross"})
    else:
        values = _fields_of(kind, data, where=f"{where}.")
    return _located(where, lambda: kind(**values))


def _fields_of(
    kind: type[Any],
    data: object,
    *,
    where: str,
    hidden: Sequence[str] = (),
    said: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a mapping as keyword arguments of a dataclass, none unknown and none missing.

    Args:
        where: what stands before names of fields in errors.
        hidden: fields that a file does not have.
        said: names that the file has for fields, where these differ.
    """
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
    values, hints = {}, typing.get_type_hints(kind)
    for name, value in data.items():
        place = where + (said or {}).get(name, name)
        hint = section_type(known[name]) or hints[name]
        values[name] = _value(hint, value, place)
    return values


def _value(hint: Any, data: object, where: str) -> Any:
    """Return what a field of that type holds. Settings and codecs are made; the rest stays as it
    is, and is checked by the settings that have it."""
    if hint is Codec:
        return codec_from_dict(data, where=where)
    if is_dataclass(hint) and isinstance(hint, type):
        return settings_from_dict(hint, data, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in arguments:
            return None
        return _value(_fitting(arguments, data), data, where)
    if origin is Sequence and _is_made(arguments[0]):
        if not isinstance(data, list | tuple):
            noun = "codecs" if arguments[0] is Codec else "rules"
            raise ValueError(f"{where}: expected a list of {noun}, got {data!r}")
        return tuple(_value(arguments[0], item, f"{where}[{n}]") for n, item in enumerate(data))
    return data


def _fitting(choices: Sequence[Any], data: object) -> Any:
    """Return the type among several that the data is read as: a list, or one of its items."""
    lists = [choice for choice in choices if typing.get_origin(choice) is Sequence]
    others = [choice for choice in choices if choice not in lists and choice is not type(None)]
    return lists[0] if lists and (isinstance(data, list | tuple) or not others) else others[0]


def _is_made(hint: Any) -> bool:
    return hint is Codec or is_dataclass(hint)


def _chosen(kind: type[Section], data: object, where: str) -> tuple[type[Section], dict[str, Any]]:
    """Return the class that a section's `kind` names, and the other fields."""
    choices = ", ".join(kind.kinds)
    if not isinstance(data, Mapping) or "kind" not in data:
        raise ValueError(f"{where}: expected {{kind: one of {choices}, ...}}, got {data!r}")
    if data["kind"] not in tuple(kind.kinds):  # which need not be hashable
        raise ValueError(f"{where}.kind: {data['kind']!r} is not one of {tuple(kind.kinds)}")
    return kind.kinds[data["kind"]], {key: item for key, item in data.items() if key != "kind"}


def _renamed(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the mapping with `codec` in place of `cross`, its name beside `intra`."""
    if data.get("algorithm") != "hierarchical":
        raise ValueError(f"{where}.cross: only with algorithm: hierarchical; else it is codec")
    if "codec" in data:
        raise ValueError(f"{where}.cross: is the same as codec; give one of them")
    return {"codec" if key == "cross" else key: value for key, value in data.items()}


def _located(where: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
