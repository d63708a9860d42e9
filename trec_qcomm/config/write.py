"""Writing of a config as a dict that YAML can hold; `read` undoes it.

Knows: fields of settings. Does not know: what they mean.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from trec_qcomm.config.config import Config
from trec_qcomm.config.gradients import AllReduceRule
from trec_qcomm.config.section import Section
from trec_qcomm.config.tables import TableRule
from trec_qcomm.core.codec import Codec

_ALWAYS = ("seed", "measure_error")  # fields of Config that are written at their defaults, too


def config_to_dict(config: Config) -> dict[str, Any]:
    """Return the config as a dict that YAML can hold; `config_from_dict` undoes it."""
    data = settings_to_dict(config)
    data.pop("source", None)
    return data | {name: getattr(config, name) for name in _ALWAYS}


def codec_to_dict(codec: Codec) -> dict[str, Any]:
    """Return the codec's name and all its fields as a dict; `codec_from_dict` undoes it."""
    names = [f.name for f in fields(codec)]  # type: ignore[arg-type]
    return {"codec": codec.name} | {name: getattr(codec, name) for name in names}


def gradient_rule_to_dict(rule: AllReduceRule) -> dict[str, Any]:
    """Return the codec and what differs from the default."""
    data = settings_to_dict(rule)
    if rule.algorithm == "hierarchical":
        data = {"cross": data.pop("codec")} | data
    return data


def settings_to_dict(settings: Any) -> dict[str, Any]:
    """Return all fields that are not None; of a config and its rules those that differ from their
    defaults."""
    is_brief = isinstance(settings, Config | TableRule | AllReduceRule)
    is_one_of_several = isinstance(settings, Section) and bool(settings.name)
    data: dict[str, Any] = {"kind": settings.name} if is_one_of_several else {}
    for known in fields(settings):
        value = getattr(settings, known.name)
        is_default = known.default is not MISSING and value == known.default
        if value is not None and not (is_brief and is_default):
            data[known.name] = _value_to_dict(value)
    return data


def _value_to_dict(value: Any) -> Any:
    if isinstance(value, AllReduceRule):
        return gradient_rule_to_dict(value)
    if isinstance(value, Codec):
        return codec_to_dict(value)
    if is_dataclass(value) or isinstance(value, Section):
        return settings_to_dict(value)
    if isinstance(value, Mapping):
        return dict(value)
    return [_value_to_dict(item) for item in value] if isinstance(value, list | tuple) else value
