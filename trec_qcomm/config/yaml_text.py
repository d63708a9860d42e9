"""YAML as configs use it: text -> mappings and back.

Beyond PyYAML's safe YAML a repeated key is an error, and `1e-3` is a number, as in YAML 1.2.

Knows: files, PyYAML. Does not know: what a config holds.
"""

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

# PyYAML raises others besides YAMLError.
_UNPARSABLE = (
    yaml.YAMLError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    RecursionError,
)
_MERGE_TAG = "tag:yaml.org,2002:merge"
_FLOAT_TAG = "tag:yaml.org,2002:float"
# YAML 1.1 wants a dot and a sign in the exponent, and reads 1e-3, 1e3 and 1.0e3 as text.
_EXPONENT_NUMBER = re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")


def read_yaml(path: str | Path) -> Any:
    """Return what a YAML file holds.

    Raises:
        FileNotFoundError: there is no such file; it names the path.
        ValueError: naming the file and what cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    return parse_yaml(text, name=str(path))


def parse_yaml(text: str, *, name: str) -> Any:
    """Return what a text holds. Raises ValueError naming its name and what cannot be read."""
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
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is not a word", key_node.start_mark
            )
        if key in keys:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is given twice", key_node.start_mark
            )
        keys.add(key)
    loader.flatten_mapping(node)  # merged keys first
    return {
        loader.construct_object(key_node, deep=True): loader.construct_object(value, deep=True)
        for key_node, value in node.value
    }


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(_FLOAT_TAG, _EXPONENT_NUMBER, list("-+.0123456789"))
