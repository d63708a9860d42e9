"""Options of a search: codecs of rows and of their gradients, rules of dense gradients.

Knows: codecs, rules. Does not know: tables, parameters, trainings.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

from trec_qcomm.codecs import Identity
from trec_qcomm.config import GradientRule, codec_to_dict
from trec_qcomm.core.codec import Codec

Direction = Literal["forward", "backward", "dense"]
ROWS: tuple[Direction, ...] = ("forward", "backward")  # of a table; "dense" is of parameters
Option = Codec | GradientRule  # a rule for dense gradients
Item = tuple[str, Direction]  # a table or a group of parameters, and what is sent of it
EXACT = Identity()


def codec_of(option: Option) -> Codec:
    """Return the codec of an option."""
    return option.codec if isinstance(option, GradientRule) else option


def is_exact(option: Option) -> bool:
    """Return whether an option changes no value."""
    is_low_rank = isinstance(option, GradientRule) and option.low_rank is not None
    return codec_of(option) == EXACT and not is_low_rank


def kind_of(option: Option) -> str:
    """Return what options have in common that differ in precision alone."""
    name = codec_of(option).name
    is_low_rank = isinstance(option, GradientRule) and option.low_rank is not None
    return f"low_rank {name}" if is_low_rank else name


def label(option: Option) -> str:
    """Return the option's name and the fields that are not its defaults: rowwise_4_stochastic."""
    codec = codec_of(option)
    defaults = {field.name: field.default for field in fields(codec)}  # type: ignore[arg-type]
    data = codec_to_dict(codec)
    values = [data[name] for name, default in defaults.items() if data[name] != default]
    parts = [codec.name, *(str(value) for value in values)]
    if isinstance(option, GradientRule):
        parts += [] if option.low_rank is None else [f"rank_{option.low_rank.rank}"]
        parts += ["feedback"] * option.error_feedback
        parts += [] if option.block == GradientRule.block else [f"block_{option.block}"]
    return "_".join(parts)


def text_of(option: Option) -> str:
    """Return an option for messages: the call that makes its codec, and the rank of factors."""
    low_rank = option.low_rank if isinstance(option, GradientRule) else None
    rank = "" if low_rank is None else f" on factors of rank {low_rank.rank}"
    return f"{codec_of(option)!r}{rank}"
