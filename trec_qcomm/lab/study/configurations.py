"""Configurations of a study by name, from what a user gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trec_qcomm.config import Config, read_config

AnyConfig = Config | Mapping[str, Any] | Path | str
Configs = Mapping[str, AnyConfig] | Iterable[Path | str]


def configs_by_name(configs: Configs) -> dict[str, Config]:
    """Return configs by name.

    Args:
        configs: names of presets and paths of YAML files, which give the names; or a mapping from
            a name to any of these, a Config, or a mapping as YAML has it.
    Raises: ValueError: a config without a name, two of one name, or a config that is wrong.
    """
    if isinstance(configs, str | Path | Config):
        raise ValueError(f"configs: expected a list or a mapping by name, got {configs!r:.60}")
    if isinstance(configs, Mapping):
        return {str(name): _read(str(name), config) for name, config in configs.items()}
    by_name: dict[str, Config] = {}
    for config in configs:
        if not isinstance(config, str | Path):
            raise ValueError(
                f"configs: a {type(config).__name__} has no name; give a mapping from name to it"
            )
        name = Path(config).stem
        if name in by_name:
            raise ValueError(f"configs: {name} is given twice; give a mapping from name to config")
        by_name[name] = _read(name, config)
    return by_name


def _read(name: str, config: AnyConfig) -> Config:
    try:
        return read_config(config)
    except FileNotFoundError as error:
        raise ValueError(f"configs, {name}: {error.filename}: no such file") from None
    except ValueError as error:
        raise ValueError(f"configs, {name}: {error}") from None
