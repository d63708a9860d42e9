"""Presets: the configs that ship, by name.

`trec_qcomm/presets` is a link to configs/ in a checkout, and a folder of its files in a wheel.

Knows: where the files lie. Does not know: what is in them.
"""

from collections.abc import Mapping
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import Any

from trec_qcomm.config.config import Config
from trec_qcomm.config.read import config_from_dict, load_config

_FOLDER = Path(__file__).resolve().parents[1] / "presets"


def presets() -> tuple[str, ...]:
    """Return the names of the configs that ship, such as "best" and "int4".

    Those of published systems, which did not all pass the gate, come last: "papers/dct" and so on.
    """
    paths = [*sorted(_FOLDER.glob("*.yaml")), *sorted(_FOLDER.glob("papers/*.yaml"))]
    return tuple(path.relative_to(_FOLDER).with_suffix("").as_posix() for path in paths)


def preset_path(name: str) -> Path:
    """Return the file that ships under a name. Raises ValueError naming those that exist."""
    if name not in presets():
        raise ValueError(f"preset: {name!r} is not one of {', '.join(presets())}")
    return _FOLDER / f"{name}.yaml"


def load_preset(name: str) -> Config:
    """Return the config that ships under a name. Raises ValueError naming those that exist."""
    return replace(load_config(preset_path(name)), source=f"preset {name}")


def read_config(config: Config | Mapping[str, Any] | Path | str) -> Config:
    """Return the config that a user names in one of four forms.

    Args:
        config: a Config, a mapping as YAML has it, the name of a preset, or the path of a YAML
            file. A text is a preset if there is one of that name, else a path.

    Raises:
        FileNotFoundError: a path, or a text with a suffix or a folder, without a file.
        ValueError: naming what is allowed, or file, field and what is allowed there.
    """
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return config_from_dict(config)
    if isinstance(config, str) and config in presets():
        return load_preset(config)
    if isinstance(config, str) and config == Path(config).stem and not isfile(config):
        raise ValueError(
            f"config: {config!r} is neither a file nor a preset; presets: {', '.join(presets())}"
        )
    if isinstance(config, str | Path):
        return load_config(config)
    raise ValueError(
        "config: expected a Config, a mapping, the path of a YAML file or the name of a preset, "
        f"got {config!r}"
    )
