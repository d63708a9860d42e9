"""Candidates of a search: codecs that are tried on every table, rules on every dense gradient.

Knows: codecs, rules. Does not know: tables, trainings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Identity, Rowwise
from trec_qcomm.config import (
    GradientRule,
    LowRank,
    codec_from_dict,
    codec_to_dict,
    config_from_dict,
)
from trec_qcomm.config.matching import PatternRules, patterns_of
from trec_qcomm.core.codec import Codec, MaskUse, check_dim
from trec_qcomm.ext.dct import Threshold, TopK

Direction = Literal["forward", "backward", "dense"]
ROWS: tuple[Direction, ...] = ("forward", "backward")  # of a table; "dense" is of parameters
Option = Codec | GradientRule  # a rule for dense gradients
Item = tuple[str, Direction]  # a table or a group of parameters, and what is sent of it
EXACT = Identity()
BOUNDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
ALGORITHM: Literal["two_shot"] = "two_shot"  # of dense candidates that name none
_BOUNDED: tuple[Codec, ...] = tuple(
    ErrorBounded(b, encoder=e) for b in BOUNDS for e in ("bitpack", "rans")
)
_ROWWISE: Mapping[str, tuple[Codec, ...]] = {
    r: tuple(Rowwise(b, r) for b in (8, 4, 2)) for r in ("nearest", "stochastic")
}
_BF16, _FLOAT6 = Cast("bf16"), Float6(rounding="stochastic")
DEFAULTS: Mapping[Direction, tuple[Codec, ...]] = {
    "forward": (EXACT, _BF16, *_BOUNDED, Float6(), *_ROWWISE["nearest"], TopK(0.5)),
    "backward": (
        EXACT, _BF16, *_BOUNDED, _FLOAT6, *_ROWWISE["stochastic"], TopK(0.5),
        TopK(0.25, values="int8"),
    ),
}  # fmt: skip
_DENSE = tuple(
    GradientRule(codec=codec, algorithm=ALGORITHM, low_rank=LowRank(rank=rank) if rank else None)
    for codec, rank in (
        *((codec, 0) for codec in (_BF16, Rowwise(8, "stochastic"), _FLOAT6)),
        *((_FLOAT6, 32), (_FLOAT6, 16), (_FLOAT6, 8), (_BF16, 16)),
    )
)
Given = Mapping[str, Iterable[Codec | GradientRule | Mapping[str, Any] | str]]
T = TypeVar("T", Codec, GradientRule)


def codec_of(option: Option) -> Codec:
    """Return the codec of an option."""
    return option.codec if isinstance(option, GradientRule) else option


def is_low_rank(option: Option) -> bool:
    """Return whether an option sends factors of low rank."""
    return isinstance(option, GradientRule) and option.low_rank is not None


def is_exact(option: Option) -> bool:
    """Return whether an option changes no value."""
    return codec_of(option) == EXACT and not is_low_rank(option)


def kind_of(option: Option) -> str:
    """Return what options have in common that differ in precision alone."""
    return "low_rank " * is_low_rank(option) + codec_of(option).name


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


@dataclass(frozen=True)
class Candidates:
    """Codecs that a search may choose. `identity` is among them in any case.

    Args:
        forward, backward: codecs of rows, and of their gradients.
        dense: rules of dense gradients, the exact one first; none where they are not searched.
        groups: patterns on names of parameters, which get one of these rules each.
    """

    forward: tuple[Codec, ...]
    backward: tuple[Codec, ...]
    dense: tuple[GradientRule, ...] = ()
    groups: tuple[str, ...] = ()

    @classmethod
    def from_lists(
        cls, given: Given | None, groups: str | Sequence[str] | None = None
    ) -> Candidates:
        """Return candidates as a user gives them; None for the default ones.

        Args:
            given: codecs by direction, as objects, mappings as in YAML, or names; under `dense`
                rules, too. A direction that is not named has the default ones.
            groups: patterns of `dense`; None: dense gradients are not searched, or, where `given`
                has candidates for them, all of them are one group.
        Raises: ValueError: another direction, no codec, one that is given twice, one that does
            not code rows (forward), or codes the columns that another codec kept.
        """
        given = {} if given is None else given
        if not isinstance(given, Mapping):
            raise ValueError(f"candidates: expected lists by direction, got {given!r:.60}")
        for name in given:
            if name not in (*ROWS, "dense"):
                raise ValueError(f"candidates, {name}: expected one of forward, backward, dense")
        rows = (
            _listed(f"candidates.{d}", given[d], _codec_of_rows(d)) if d in given else DEFAULTS[d]
            for d in ROWS
        )
        forward, backward = (tuple(dict.fromkeys((EXACT, *codecs))) for codecs in rows)
        if groups is None and "dense" not in given:
            return cls(forward, backward)
        patterns = patterns_of("*" if groups is None else groups, "dense")
        rules = _listed("candidates.dense", given.get("dense", _DENSE), _rule)
        for number, rule in enumerate(rules):
            _check_rule(f"candidates.dense[{number}]", rule, rules[0])
        exact = GradientRule(codec=EXACT, algorithm=rules[0].algorithm, link=rules[0].link)
        return cls(forward, backward, tuple(dict.fromkeys((exact, *rules))), patterns)

    def __getitem__(self, direction: Direction) -> tuple[Option, ...]:
        options: tuple[Option, ...] = getattr(self, direction)
        return options

    @property
    def of_rows(self) -> tuple[Codec, ...]:
        """The codecs of both directions of rows, each once."""
        return tuple(dict.fromkeys((*self.forward, *self.backward)))

    @property
    def groups_by_name(self) -> PatternRules:
        """Groups of parameters by name: of the patterns that match the first holds."""
        return PatternRules("dense", "groups", "parameter", [(group,) for group in self.groups])

    def check_dims(self, dims: Mapping[str, int]) -> None:
        """Raise ValueError where a candidate does not take rows of a table. Args: dims: by table"""
        for direction, codecs in (("forward", self.forward), ("backward", self.backward)):
            for number, codec in enumerate(codecs):
                for table, dim in dims.items():
                    where = f"candidates.{direction}[{number}]: {codec!r}: table {table!r}"
                    check_dim(codec, dim, where)


def _listed(where: str, given: object, make: Callable[[object, str], T]) -> list[T]:
    """Return the options of a list. Raises ValueError: no list, an empty one, or one twice."""
    if not isinstance(given, Iterable) or isinstance(given, str | Mapping):
        raise ValueError(f"{where}: expected a list, got {given!r:.60}")
    options: list[T] = []
    for number, entry in enumerate(given):
        option = make(entry, f"{where}[{number}]")
        if option in options:
            raise ValueError(f"{where}[{number}]: {codec_of(option)!r} is given twice")
        options.append(option)
    if not options:
        raise ValueError(f"{where}: expected one or more")
    return options


def _codec(entry: object, where: str) -> Codec:
    if isinstance(entry, str | Mapping):
        return codec_from_dict(entry, where=where)
    if not isinstance(entry, Codec):
        raise ValueError(f"{where}: expected a codec, got {entry!r:.60}")
    return entry


def _codec_of_rows(direction: Direction) -> Callable[[object, str], Codec]:
    def make(entry: object, where: str) -> Codec:
        codec = _codec(entry, where)
        if codec.mask_use is MaskUse.READS:
            raise ValueError(f"{where}: {codec!r} codes columns that another codec kept, not rows")
        if direction == "forward" and isinstance(codec, Threshold):
            raise ValueError(f"{where}: {codec!r} is for gradients only")
        return codec

    return make


def _rule(entry: object, where: str) -> GradientRule:
    if isinstance(entry, GradientRule):
        return entry
    if not isinstance(entry, str | Mapping):
        return GradientRule(codec=_codec(entry, where), algorithm=ALGORITHM)
    rule = {"codec": entry} if isinstance(entry, str) else entry
    try:
        (made,) = config_from_dict({"dense": {"algorithm": ALGORITHM, **rule}}).dense_rules
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return made


def _check_rule(where: str, rule: GradientRule, first: GradientRule) -> None:
    """Raise ValueError where a rule cannot be priced, or not beside the first one."""
    if tuple(rule.parameters) != ("*",):
        raise ValueError(f"{where}.parameters: groups are given apart, as dense")
    if rule.algorithm == "hierarchical":
        raise ValueError(f"{where}.algorithm: hierarchical has two hops, which have no price here")
    for name in ("algorithm", "link"):
        theirs, ours = getattr(first, name), getattr(rule, name)
        if ours != theirs:
            raise ValueError(f"{where}.{name}: {ours!r}, but {theirs!r} before")
