"""Choice: for each part of a step's traffic, the candidate whose settings the part has.

A candidate is a config that passed the quality gate, such as a preset. A choice that mixes
candidates part by part is within the gate's limits, too, because no part errs more than in one of
them.

Knows: configs. Does not know: sessions, times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from trec_qcomm.config import Config

EXACT = "exact"


@dataclass(frozen=True)
class Choice:
    """Settings of all parts of a step's traffic; the defaults are TorchRec alone.

    Args:
        forward: candidate whose codecs the rows have, or `exact`.
        backward: candidate whose codecs the rows' gradients have, or `exact`.
        dense: candidate whose rules reduce dense gradients; `exact`: DDP reduces them.
        ids, bags: arguments of QComm.use_codecs.
    """

    forward: str = EXACT
    backward: str = EXACT
    dense: str = EXACT
    ids: Literal["packed", "exact"] = "exact"
    bags: Literal["distinct", "all"] = "all"

    def __str__(self) -> str:
        """Return the settings in one line."""
        if self == Choice():
            return "exact TorchRec"
        return ", ".join(f"{part} {getattr(self, part)}" for part in PARTS)


PARTS = tuple(field.name for field in fields(Choice))


def choice_of(name: str, candidate: Config, config: Config) -> Choice:
    """Return the settings of a candidate, as far as a config lets them be chosen.

    Args: name: name of the candidate.  config: the config that has `auto`.
    """
    rules = candidate.embedding
    return Choice(
        forward=name if rules else EXACT,
        backward=name if rules else EXACT,
        dense=name if candidate.dense is not None and config.dense is not None else EXACT,
        ids="packed" if candidate.ids is not None and config.ids is not None else "exact",
        bags="distinct" if any(rule.unique_bags for rule in rules) else "all",
    )


def options(choices: Sequence[Choice], candidates: Mapping[str, Config]) -> dict[str, list[str]]:
    """Return the different settings of each part, in the order of the choices.

    Args: choices: choices of whole candidates.  candidates: configs by name.
    """

    def setting(part: str, name: str) -> object:
        config = candidates.get(name)
        if config is None:
            return name
        return config.dense_rules if part == "dense" else _codecs(config, part)

    made: dict[str, list[str]] = {}
    for part in PARTS:
        by_setting: list[tuple[object, str]] = []
        for choice in choices:
            name = getattr(choice, part)
            if setting(part, name) not in [known for known, _ in by_setting]:
                by_setting.append((setting(part, name), name))
        made[part] = [name for _, name in by_setting]
    return made


def _codecs(config: Config, direction: str) -> list[object]:
    return [(rule.tables, getattr(rule, direction)) for rule in config.embedding]
