"""Candidates of a search: codecs that are tried on every table, rules on every dense gradient.

Knows: codecs, the registry, rules. Does not know: tables, trainings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Identity, Rowwise
from trec_qcomm.config import GradientRule, LowRank, codec_from_dict, config_from_dict
from trec_qcomm.config.matching import PatternRules, patterns_of
from trec_qcomm.core.codec import Codec, MaskUse, check_dim, mask_use
from trec_qcomm.core.registry import codec_names, codec_type
from trec_qcomm.ext.dct import Threshold, TopK
from trec_qcomm.lab.search.losses.options import EXACT, ROWS, Direction, Option

BOUNDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
_BOUNDED = tuple(ErrorBounded(b, encoder=e) for b in BOUNDS for e in ("bitpack", "rans"))
_DEFAULTS: Mapping[str, Mapping[Direction, Sequence[Codec]]] = {
    "identity": {"forward": (Identity(),), "backward": (Identity(),)},
    "cast": {"forward": (Cast("bf16"),), "backward": (Cast("bf16"),)},
    "rowwise": {
        "forward": (Rowwise(8), Rowwise(4), Rowwise(2)),
        "backward": tuple(Rowwise(bits, "stochastic") for bits in (8, 4, 2)),
    },
    "float6": {"forward": (Float6(),), "backward": (Float6(rounding="stochastic"),)},
    "error_bounded": {"forward": _BOUNDED, "backward": _BOUNDED},
    "topk": {"forward": (TopK(0.5),), "backward": (TopK(0.5), TopK(0.25, values="int8"))},
    "fbgemm": {},  # the same values as rowwise and cast, in no fewer bytes
    "threshold": {},  # its number is in the unit of the gradients, which nobody knows before
}
ALGORITHM: Literal["two_shot"] = (
    "two_shot"  # of dense candidates that name none: it encodes a value only twice
)
_FLOAT6 = Float6(rounding="stochastic")
_DENSE = (
    GradientRule(codec=Cast("bf16"), algorithm=ALGORITHM),
    *(
        GradientRule(codec=codec, algorithm=ALGORITHM)
        for codec in (Rowwise(8, "stochastic"), _FLOAT6)
    ),
    *(
        GradientRule(codec=_FLOAT6, algorithm=ALGORITHM, low_rank=LowRank(rank=rank))
        for rank in (32, 16, 8)
    ),
    GradientRule(codec=Cast("bf16"), algorithm=ALGORITHM, low_rank=LowRank(rank=16)),
)
Given = Mapping[str, Iterable[Codec | GradientRule | Mapping[str, Any] | str]]


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
        cls, given: Given | Candidates | None, groups: str | Sequence[str] | None = None
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
        if isinstance(given, Candidates):
            return given
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            raise ValueError(f"candidates: expected lists by direction, got {given!r:.60}")
        for name in given:
            if name not in (*ROWS, "dense"):
                allowed = ", ".join((*ROWS, "dense"))
                raise ValueError(f"candidates, {name}: expected one of {allowed}")
        forward, backward = (
            _checked(direction, given[direction])
            if direction in given
            else default_candidates(direction)
            for direction in ROWS
        )
        if groups is None and "dense" not in given:
            return cls(forward, backward)
        patterns = patterns_of("*" if groups is None else groups, "dense")
        return cls(forward, backward, _checked_dense(given.get("dense", _DENSE)), patterns)

    def __getitem__(self, direction: Direction) -> tuple[Option, ...]:
        if direction == "dense":
            return self.dense
        return self.forward if direction == "forward" else self.backward

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


def default_candidates(direction: Direction) -> tuple[Codec, ...]:
    """Return codecs to try in one direction: those of this package, and of other registered types
    the one that needs no argument."""
    codecs: list[Codec] = []
    for name in codec_names():
        if name in _DEFAULTS:
            codecs += _DEFAULTS[name].get(direction, ())
        elif (codec := _without_arguments(codec_type(name))) is not None:
            codecs.append(codec)
    codecs = [codec for codec in codecs if _reason_against(direction, codec) is None]
    return tuple(sorted(codecs, key=lambda codec: codec != Identity()))


def _checked(direction: Direction, given: object) -> tuple[Codec, ...]:
    where = f"candidates.{direction}"
    if not isinstance(given, Iterable) or isinstance(given, str | Mapping):
        raise ValueError(f"{where}: expected a list of codecs, got {given!r:.60}")
    codecs = []
    for number, entry in enumerate(given):
        codec = _codec(entry, f"{where}[{number}]")
        reason = _reason_against(direction, codec)
        if reason is not None:
            raise ValueError(f"{where}[{number}]: {codec!r} {reason}")
        if codec in codecs:
            raise ValueError(f"{where}[{number}]: {codec!r} is given twice")
        codecs.append(codec)
    if not codecs:
        raise ValueError(f"{where}: expected one codec or more")
    return tuple(dict.fromkeys((Identity(), *codecs)))


def _checked_dense(given: object) -> tuple[GradientRule, ...]:
    """Return rules of dense gradients, the exact one first."""
    where = "candidates.dense"
    if not isinstance(given, Iterable) or isinstance(given, str | Mapping):
        raise ValueError(f"{where}: expected a list of rules, got {given!r:.60}")
    rules: list[GradientRule] = []
    for number, entry in enumerate(given):
        rule = _rule(entry, f"{where}[{number}]")
        if tuple(rule.parameters) != ("*",):
            raise ValueError(f"{where}[{number}].parameters: groups are given apart, as dense")
        if rule.algorithm == "hierarchical":
            raise ValueError(
                f"{where}[{number}].algorithm: hierarchical has two hops, which a search does not "
                "price; allowed: auto, ring, recursive_doubling, two_shot"
            )
        for name in ("algorithm", "link"):
            ours, first = getattr(rule, name), getattr(rules[0] if rules else rule, name)
            if ours != first:
                raise ValueError(f"{where}[{number}].{name}: {ours!r}, but {first!r} before")
        if rule in rules:
            raise ValueError(f"{where}[{number}]: {rule.codec!r} is given twice")
        rules.append(rule)
    if not rules:
        raise ValueError(f"{where}: expected one rule or more")
    exact = GradientRule(codec=EXACT, algorithm=rules[0].algorithm, link=rules[0].link)
    return tuple(dict.fromkeys((exact, *rules)))


def _rule(entry: object, where: str) -> GradientRule:
    if isinstance(entry, GradientRule):
        return entry
    if isinstance(entry, str):
        entry = {"codec": entry}
    if isinstance(entry, Mapping):
        try:
            (rule,) = config_from_dict({"dense": {"algorithm": ALGORITHM, **entry}}).dense_rules
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        return rule
    return GradientRule(codec=_codec(entry, where), algorithm=ALGORITHM)


def _codec(entry: object, where: str) -> Codec:
    if isinstance(entry, str):
        entry = {"codec": entry}
    if isinstance(entry, Mapping):
        return codec_from_dict(dict(entry), where=where)
    if isinstance(entry, type) or not isinstance(entry, Codec):
        raise ValueError(f"{where}: expected a codec, got {entry!r:.60}")
    return entry


def _reason_against(direction: Direction, codec: Codec) -> str | None:
    if mask_use(codec) is MaskUse.READS:
        return "codes the columns that another codec kept, not rows"
    if direction == "forward" and isinstance(codec, Threshold):
        return "is for gradients only"
    return None


def _without_arguments(kind: type[Codec]) -> Codec | None:
    required = [
        field.name
        for field in fields(kind)  # type: ignore[arg-type]
        if field.default is MISSING and field.default_factory is MISSING
    ]
    return None if required else kind()
