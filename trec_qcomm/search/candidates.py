"""Candidates of a search: codecs for rows and for their gradients, which are tried on every table.

Knows: codecs, the registry. Does not know: tables, trainings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, get_args

from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Identity, Rowwise, Sign, Threshold, TopK
from trec_qcomm.config import codec_from_dict, codec_to_dict
from trec_qcomm.core.codec import Codec, MaskUse, check_dim, mask_use
from trec_qcomm.core.registry import codec_names, codec_type

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
GRADIENTS_ONLY = (Sign, Threshold)
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
    "sign": {},  # loses what Adagrad divides by
    "threshold": {},  # its number is in the unit of the gradients, which nobody knows before
}
Given = Mapping[str, Iterable[Codec | Mapping[str, Any] | str]]


@dataclass(frozen=True)
class Candidates:
    """Codecs that a search may choose. `identity` is among them in any case.

    Args: forward, backward: codecs of rows, and of their gradients.
    """

    forward: tuple[Codec, ...]
    backward: tuple[Codec, ...]

    @classmethod
    def from_lists(cls, given: Given | Candidates | None) -> Candidates:
        """Return candidates as a user gives them; None for the default ones.

        Args: given: codecs by direction, as objects, mappings as in YAML, or names. A direction
            that is not named has the default ones.
        Raises: ValueError: another direction, no codec, one that is given twice, or one that does
            not code rows (forward), or codes the columns that another codec kept.
        """
        if isinstance(given, Candidates):
            return given
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            raise ValueError(f"candidates: expected lists by direction, got {given!r:.60}")
        for name in given:
            if name not in DIRECTIONS:
                raise ValueError(f"candidates, {name}: expected one of {', '.join(DIRECTIONS)}")
        codecs = {
            direction: _checked(direction, given[direction])
            if direction in given
            else default_candidates(direction)
            for direction in DIRECTIONS
        }
        return cls(**codecs)

    def __getitem__(self, direction: Direction) -> tuple[Codec, ...]:
        return self.forward if direction == "forward" else self.backward

    @property
    def all(self) -> tuple[Codec, ...]:
        """The codecs of both directions, each once."""
        return tuple(dict.fromkeys((*self.forward, *self.backward)))

    def check_dims(self, dims: Mapping[str, int]) -> None:
        """Raise ValueError where a candidate does not take rows of a table. Args: dims: by table"""
        for direction in DIRECTIONS:
            for number, codec in enumerate(self[direction]):
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


def label(codec: Codec) -> str:
    """Return a codec's name and the fields that are not its defaults: rowwise_4_stochastic."""
    defaults = {field.name: field.default for field in fields(codec)}  # type: ignore[arg-type]
    data = codec_to_dict(codec)
    values = [data[name] for name, default in defaults.items() if data[name] != default]
    return "_".join([codec.name, *(str(value) for value in values)])


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
    if direction == "forward" and isinstance(codec, GRADIENTS_ONLY):
        return "is for gradients only"
    return None


def _without_arguments(kind: type[Codec]) -> Codec | None:
    required = [
        field.name
        for field in fields(kind)  # type: ignore[arg-type]
        if field.default is MISSING and field.default_factory is MISSING
    ]
    return None if required else kind()
