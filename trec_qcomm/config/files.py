"""Files of configs: YAML, the mappings that it holds, and the presets that ship.

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
    check_replicas_every: 1000    # steps between comparisons of replicas; 0: none
    measure_error: false          # record max_abs_err of every table in stats(); slow

A codec's name alone is short for a mapping with one key: `codec: float6` is `codec: {codec:
float6}`. Likewise `tables: "*"` is `tables: ["*"]`. Anchors and merge keys (`<<: *name`) work; a
key at the top level that begins with `x-` is a place for anchors.

This reader differs from PyYAML's safe YAML in two points: a repeated key is an error, and `1e-3` is
a number, as in YAML 1.2. In a checkout the folder `trec_qcomm/presets` is a link to configs/; a
wheel holds the files themselves.

Knows: PyYAML, where files lie. Does not know: what any field means.
"""

import re
from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from trec_qcomm.config.config import Config
from trec_qcomm.config.gradients import AllReduceRule
from trec_qcomm.config.tables import TableRule
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.fields import read, write

_FOLDER = Path(__file__).resolve().parents[1] / "presets"
_ALWAYS = ("seed", "measure_error")  # fields of Config that are written at their defaults, too
# PyYAML raises others besides YAMLError.
_UNPARSABLE = (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError, RecursionError)
_MERGE_TAG = "tag:yaml.org,2002:merge"
_FLOAT_TAG = "tag:yaml.org,2002:float"
# YAML 1.1 wants a dot and a sign in the exponent, and reads 1e-3, 1e3 and 1.0e3 as text.
_SEXAGESIMAL = re.compile(r"^[-+]?[0-9_]+(?::[0-9]+)+\.?[0-9_]*$")  # a number in YAML 1.1 alone
_EXPONENT_NUMBER = re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")


def load_config(path: str | Path) -> Config:
    """Read a config from a YAML file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no config; the error names file, field and allowed values.
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
        source: name of the document's origin, for errors.

    Raises: ValueError: the document is no config; the error names field and allowed values.
    """
    if isinstance(data, Mapping):  # what begins with x- only holds anchors
        data = {key: value for key, value in data.items() if not str(key).startswith("x-")}
        if data.get("embedding") == []:
            raise ValueError("embedding: expected a list of one or more rules")
    config: Config = read(Config, data)
    return replace(config, source=source)


def codec_from_dict(data: object, *, where: str = "codec") -> Codec:
    """Return the codec that a mapping or a name describes; `codec_to_dict` is the inverse.

    Args:
        data: {"codec": name, and fields}, or a name.
        where: name of the field that holds the codec, for errors.

    Raises: ValueError: no such codec; the error names the field under `where` and allowed values.
    """
    codec: Codec = read(Codec, data, where)
    return codec


def config_to_dict(config: Config) -> dict[str, Any]:
    """Return the config as a dict for YAML; `config_from_dict` is the inverse."""
    data: dict[str, Any] = write(config, brief=(Config, TableRule, AllReduceRule))
    return data | {name: getattr(config, name) for name in _ALWAYS}


def codec_to_dict(codec: Codec) -> dict[str, Any]:
    """Return the codec's name and all its fields as a dict; `codec_from_dict` is the inverse."""
    data: dict[str, Any] = write(codec)
    return data


def presets() -> tuple[str, ...]:
    """Return the names of the configs that ship, such as "best" and "int4".

    Configs of published systems come last, such as "papers/dct". Not all of them passed the gate.
    """
    paths = [*sorted(_FOLDER.glob("*.yaml")), *sorted(_FOLDER.glob("papers/*.yaml"))]
    return tuple(path.relative_to(_FOLDER).with_suffix("").as_posix() for path in paths)


def preset_path(name: str) -> Path:
    """Return the file of the preset of that name. Raises ValueError naming all presets."""
    if name not in presets():
        raise ValueError(f"preset: {name!r} is not one of {', '.join(presets())}")
    return _FOLDER / f"{name}.yaml"


def load_preset(name: str) -> Config:
    """Return the preset of that name. Raises ValueError naming all presets."""
    return replace(load_config(preset_path(name)), source=f"preset {name}")


def read_config(config: Config | Mapping[str, Any] | Path | str) -> Config:
    """Return the config that a user names in one of four forms.

    Args:
        config: a Config, a mapping as in YAML, the name of a preset, or the path of a YAML file. A
            text is the name of a preset if one has that name, else a path.

    Raises:
        FileNotFoundError: a path, or a text with a suffix or a folder, without a file.
        ValueError: no config; the error names what is allowed, with file and field.
    """
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return config_from_dict(config)
    if isinstance(config, str) and config in presets():
        return load_preset(config)
    if isinstance(config, str) and config == Path(config).stem and not Path(config).is_file():
        raise ValueError(
            f"config: {config!r} is neither a file nor a preset; presets: {', '.join(presets())}"
        )
    if isinstance(config, str | Path):
        return load_config(config)
    raise ValueError(
        "config: expected a Config, a mapping, the path of a YAML file or the name of a preset, "
        f"got {config!r}"
    )


def read_yaml(path: str | Path) -> Any:
    """Return what a YAML file holds.

    Raises:
        FileNotFoundError: there is no such file; the error names the path.
        ValueError: no YAML; the error names the file and what cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    return parse_yaml(text, name=str(path))


def parse_yaml(text: str, *, name: str) -> Any:
    """Return what a YAML text holds. Raises ValueError naming `name` and what cannot be read."""
    try:
        return yaml.load(text, Loader=_Loader)
    except _UNPARSABLE as error:
        raise ValueError(f"{name}: cannot be read: {error or type(error).__name__}") from error


def write_yaml(data: Mapping[str, Any]) -> str:
    """Return the mapping as YAML text, which `read_yaml` reads."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False)
    return text


class _Loader(yaml.SafeLoader):
    """Reader of safe YAML in which a repeated key is an error."""


class _Dumper(yaml.SafeDumper):
    """Writer that puts a text such as 1e-3 into quotes, since `_Loader` reads a number."""


def _unique_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    """Return a mapping. Its keys take the place of those that `<<` merges into it."""
    keys = set()
    for key_node, _ in node.value:
        is_merge = key_node.tag == _MERGE_TAG
        key = "<<" if is_merge else loader.construct_object(key_node, deep=True)
        is_key = isinstance(key, Hashable)
        if not is_key or key in keys:
            problem = f"key {key!r} is {'given twice' if is_key else 'not a word'}"
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        keys.add(key)
    loader.flatten_mapping(node)  # merged keys first
    return {
        loader.construct_object(key_node, deep=True): loader.construct_object(value, deep=True)
        for key_node, value in node.value
    }


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(_FLOAT_TAG, _EXPONENT_NUMBER, list("-+.0123456789"))
_Loader.yaml_implicit_resolvers = {
    first: [("tag:yaml.org,2002:str", _SEXAGESIMAL), *others]
    for first, others in _Loader.yaml_implicit_resolvers.items()
}
