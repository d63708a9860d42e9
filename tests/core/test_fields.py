"""Fields by their hints: what is read, what is refused and in which words, what is written."""

import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import pytest

from trec_qcomm.codecs import Float6, Identity, Rowwise
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.fields import Range, check_fields, read, write

Count = Annotated[int, Range(1, 2**31 - 1)]
Share = Annotated[float, Range(0, 1, is_open=True)]


@dataclass(frozen=True)
class Part:
    count: Count = 1
    names: Sequence[str] = ()

    kinds: ClassVar[dict[str, Any]] = {}

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Small(Part):
    pass


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    codec: Codec = field(default=Identity())
    one_or_more: Part | Sequence[Part] | None = None
    shares: Mapping[str, Share] = field(default_factory=dict)
    hidden: int = field(default=0, metadata={"stored": False})


Part.kinds |= {"part": Part, "small": Small}


@pytest.mark.parametrize(
    ("hint", "good", "bad", "words"),
    [
        (int, [0, -3], [1.0, True, "1", None], "an integer"),
        (float, [0, 0.5, math.inf], [False, "1"], "a number"),
        (bool, [True], [0, "yes"], "true or false"),
        (str, ["", "a"], [1, ["a"]], "a text"),
        (Literal[8, "a"], [8, "a"], [8.0, 4, [8]], "one of (8, 'a')"),
        (Count, [1, 2**31 - 1], [0, 2**31, 1.5, True], "an integer in 1..2^31 - 1"),
        (Share, [0.5], [0, 1, math.nan, "x"], "a finite number between 0 and 1"),
        (Annotated[float, Range()], [-1e308], [math.inf, math.nan, 10**400], "a finite number"),
        (Annotated[int, Range(0)], [0, 10**9], [-1], "an integer >= 0"),
        (Annotated[float, Range(0, is_open=True)], [1e-300], [0, 0.0], "a finite number > 0"),
    ],
)
def test_scalars(hint: Any, good: list[Any], bad: list[Any], words: str) -> None:
    for value in good:
        assert read(hint, value, "x") is value
    for value in bad:
        message = re.escape(f"x: {reprlib.repr(value):.60} is not {words}")
        with pytest.raises(ValueError, match=f"^{message}$"):
            read(hint, value, "x")


def test_what_is_written_is_read_back() -> None:
    whole = Whole(
        parts=(Part(), Small(3, "a")), codec=Rowwise(4), one_or_more=Part(2), shares={"a": 0.5}
    )
    data = write(whole)
    assert data == {
        "parts": [{"kind": "part", "count": 1}, {"kind": "small", "count": 3, "names": ["a"]}],
        "codec": {"codec": "rowwise", "bits": 4, "rounding": "nearest", "nonfinite": "keep"},
        "one_or_more": {"kind": "part", "count": 2},
        "shares": {"a": 0.5},
    }
    assert read(Whole, data) == whole
    assert write(whole, brief=(Part,))["parts"][0] == {"kind": "part"}
    assert read(Whole, {"parts": ["part", Small()], "codec": "float6", "one_or_more": []}) == (
        Whole(parts=(Part(), Small()), codec=Float6(), one_or_more=())
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": 5}, "x.parts: expected a list of mappings, got 5"),
        ({"part": []}, r"x\.part: unknown key; allowed: parts, .*, shares; did you mean parts\?"),
        ({"hidden": 1}, r"x\.hidden: unknown key; allowed: parts, codec, one_or_more, shares$"),
        ({"parts": ["part", "smal"]}, r"x\.parts\[1\]\.kind: 'smal' is not one of \('part', 'sm"),
        ({"parts": [{"count": 1}]}, r"x\.parts\[0\]: expected the name of a kind .*: part, small"),
        ({"codec": Rowwise}, r"x\.codec: expected the name of a codec .* got <class .*identity"),
        ({"shares": {"a": 2}}, r"x\.shares\.a: 2 is not a finite number between 0 and 1"),
        ({"one_or_more": [{"kind": "part", "count": 0}]}, r"x\.one_or_more\[0\]\.count: 0 is not"),
        ({"one_or_more": {"kind": "part", "count": 0}}, r"x\.one_or_more\.count: 0 is not"),
        ({"one_or_more": 3}, r"x\.one_or_more: expected a mapping .* or a list of mappings, got 3"),
    ],
)
def test_an_error_names_the_place_and_what_is_allowed(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(Whole, {"parts": []} | change, "x")


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match=r"^parts: missing$"):
        read(Whole, {})


def test_a_dataclass_checks_what_python_gives_it() -> None:
    assert Part(names=["a", "b"]).names == ("a", "b")
    with pytest.raises(ValueError, match=r"^names\[1\]: 2 is not a text$"):
        Part(names=["a", 2])  # type: ignore[list-item]
