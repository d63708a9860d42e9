"""Candidates of a search: codecs that are tried on every table.

Knows: codecs. Does not know: tables, trainings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Identity, Rowwise
from trec_qcomm.config import codec_from_dict, codec_to_dict
from trec_qcomm.config.tables import DIRECTIONS, Direction
from trec_qcomm.core.codec import Codec, check_dim
from trec_qcomm.ext.dct import Threshold, TopK

Item = tuple[str, Direction]  # a table, and what is sent of it
EXACT = Identity()
BOUNDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
_BOUNDED: tuple[Codec, ...] = tuple(
    ErrorBounded(b, encoder=e) for b in BOUNDS for e in ("bitpack", "rans")
)
_ROWWISE: Mapping[str, tuple[Codec, ...]] = {
    r: tuple(Rowwise(b, r) for b in (8, 4, 2)) for r in ("nearest", "stochastic")
}
_BF16 = Cast("bf16")
DEFAULTS: Mapping[Direction, tuple[Codec, ...]] = {
    "forward": (EXACT, _BF16, *_BOUNDED, Float6(), *_ROWWISE["nearest"], TopK(0.5)),
    "backward": (
        EXACT, _BF16, *_BOUNDED, Float6(rounding="stochastic"), *_ROWWISE["stochastic"], TopK(0.5),
        TopK(0.25, values="int8"),
    ),
}  # fmt: skip
Given = Mapping[str, Iterable[Codec | Mapping[str, Any] | str]]


def label(codec: Codec) -> str:
    """Return the codec's name and the fields that differ from defaults: rowwise_4_stochastic."""
    defaults = {field.name: field.default for field in fields(codec)}  # type: ignore[arg-type]
    data = codec_to_dict(codec)
    values = [data[name] for name, default in defaults.items() if data[name] != default]
    return "_".join([codec.name, *map(str, values)])


@dataclass(frozen=True)
class Candidates:
    """Codecs that a search may choose. `identity` is among them in any case.

    Args: forward, backward: codecs of rows, and of their gradients.
    """

    forward: tuple[Codec, ...]
    backward: tuple[Codec, ...]

    @classmethod
    def from_lists(cls, given: Given | None) -> Candidates:
        """Return candidates as a user gives them; None for the default ones.

        Args: given: codecs by direction, as objects, mappings as in YAML, or names. A direction
            that is not named has the default ones.
        Raises: ValueError: another direction, no codec, a codec that is given twice, a codec that
            does not code rows (forward), or a codec for columns that another codec kept.
        """
        given = {} if given is None else given
        if not isinstance(given, Mapping):
            raise ValueError(f"candidates: expected lists by direction, got {given!r:.60}")
        for name in given:
            if name not in DIRECTIONS:
                raise ValueError(f"candidates, {name}: expected one of {', '.join(DIRECTIONS)}")
        forward, backward = (
            tuple(dict.fromkeys((EXACT, *(_listed(d, given[d]) if d in given else DEFAULTS[d]))))
            for d in DIRECTIONS
        )
        return cls(forward, backward)

    def __getitem__(self, direction: Direction) -> tuple[Codec, ...]:
        return self.forward if direction == "forward" else self.backward

    @property
    def all(self) -> tuple[Codec, ...]:
        """Codecs of both directions, each once."""
        return tuple(dict.fromkeys((*self.forward, *self.backward)))

    def check_dims(self, dims: Mapping[str, int]) -> None:
        """Raise ValueError if a candidate does not take a table's rows. Args: dims: by table"""
        for direction in DIRECTIONS:
            for number, codec in enumerate(self[direction]):
                for table, dim in dims.items():
                    where = f"candidates.{direction}[{number}]: {codec!r}: table {table!r}"
                    check_dim(codec, dim, where)


def _listed(direction: Direction, given: object) -> list[Codec]:
    """Return the codecs of a list. Raises ValueError: no list, an empty one, or one twice."""
    where = f"candidates.{direction}"
    if not isinstance(given, Iterable) or isinstance(given, str | Mapping):
        raise ValueError(f"{where}: expected a list, got {given!r:.60}")
    codecs: list[Codec] = []
    for number, entry in enumerate(given):
        codec = _codec(entry, direction, f"{where}[{number}]")
        if codec in codecs:
            raise ValueError(f"{where}[{number}]: {codec!r} is given twice")
        codecs.append(codec)
    if not codecs:
        raise ValueError(f"{where}: expected one or more")
    return codecs


def _codec(entry: object, direction: Direction, where: str) -> Codec:
    codec = codec_from_dict(entry, where=where) if isinstance(entry, str | Mapping) else entry
    if isinstance(codec, type) or not isinstance(codec, Codec):
        raise ValueError(f"{where}: expected a codec, got {codec!r:.60}")
    if codec.follows_forward:
        raise ValueError(f"{where}: {codec!r} codes columns that another codec kept, not rows")
    if direction == "forward" and isinstance(codec, Threshold):
        raise ValueError(f"{where}: {codec!r} is for gradients only")
    return codec
