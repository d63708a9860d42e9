"""Differences of configs, key by key: between ranks, and between a checkpoint and a run.

Knows: configs, as mappings. Does not know: process groups, checkpoints.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trec_qcomm.config.config import Config
from trec_qcomm.config.files import config_from_dict, config_to_dict
from trec_qcomm.config.gradients import AllReduceRule
from trec_qcomm.core.fields import write

_MOST_NAMED = 6  # keys, or ranks, in one message
_MISSING = "not given"
_WITHOUT_EFFECT = ("measure_error", "check_replicas_every")  # on values


def flat_config(config: Config) -> dict[str, str]:
    """Return the config as a flat mapping, such as {"embedding[0].forward.bits": "4"}.

    `debug` is left out, because it may differ between ranks and runs.
    """
    data = config_to_dict(config)
    data.pop("debug", None)
    return _flat(data)


def flat_rule(rule: AllReduceRule, name: str) -> dict[str, str]:
    """Return a rule of gradients as a flat mapping. Args: name: prefix of the keys."""
    return _flat({name: write(rule, brief=(AllReduceRule,))})


def config_text(config: Config) -> str:
    """Return the config as JSON text, which a checkpoint keeps and `changes_of` compares."""
    return json.dumps(config_to_dict(config), default=repr)


def changes_of(text: str, config: Config) -> dict[str, str]:
    """Return the differences between a `config_text` and a config, {key: "4 -> 8"}.

    A field that a newer version added is no difference while it has its default. `debug` and other
    settings that change no value never count.

    Raises: ValueError: `text` is not the text of a config.
    """
    try:
        saved = json.loads(text)
        if not isinstance(saved, dict):
            raise ValueError("expected a mapping")
    except (ValueError, TypeError) as error:
        raise ValueError(f"config: no text of a config: {error}") from error
    saved.pop("debug", None)
    try:
        before = flat_config(config_from_dict(saved))
    except ValueError:  # with a codec or field that is not known any more
        before = _flat(saved)
    after = flat_config(config)
    keys = [key for key in before | after if key not in _WITHOUT_EFFECT]
    pairs = {key: (before.get(key, _MISSING), after.get(key, _MISSING)) for key in keys}
    return {key: f"{old} -> {new}" for key, (old, new) in pairs.items() if old != new}


def text_of_changes(changes: Mapping[str, str]) -> str:
    """Return the first few changes as text."""
    return _first([f"{key}: {change}" for key, change in changes.items()])


def text_of_ranks(by_rank: Sequence[Mapping[str, str]]) -> str:
    """Return the keys that differ between ranks, with values and ranks; empty if none differs."""
    keys = list(dict.fromkeys(key for values in by_rank for key in values))
    lines = []
    for key in keys:
        ranks: dict[str, list[str]] = {}
        for rank, values in enumerate(by_rank):
            ranks.setdefault(values.get(key, _MISSING), []).append(str(rank))
        if len(ranks) > 1:
            named = (f"{value} on rank {_first(on, ', ')}" for value, on in ranks.items())
            lines.append(f"{key}: {'; '.join(named)}")
    return _first(lines, "\n")


def _first(texts: Sequence[str], between: str = "; ") -> str:
    more = len(texts) - _MOST_NAMED
    return between.join(texts[:_MOST_NAMED]) + (f"{between}and {more} more" if more > 0 else "")


def _flat(value: Any, key: str = "") -> dict[str, str]:
    if isinstance(value, Mapping) and value:
        parts = [(f"{key}.{name}" if key else str(name), part) for name, part in value.items()]
    elif isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        parts = [(f"{key}[{number}]", part) for number, part in enumerate(value)]
    else:
        return {key: repr(value)}
    return {name: text for part_key, part in parts for name, text in _flat(part, part_key).items()}
