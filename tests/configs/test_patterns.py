"""A rule that earlier rules hide is an error; one that may hold for some table is none."""

from fnmatch import fnmatchcase
from itertools import product

import pytest

from trec_qcomm import Config, Identity, TableRule
from trec_qcomm.config.patterns import covers

ALPHABET = "ab]!-"
NAMES = ["".join(word) for n in range(4) for word in product(ALPHABET, repeat=n)]
PARTS = ("a", "b", "*", "?", "[ab]", "[!a]", "[]]", "[*]", "[", "**")
PATTERNS = [
    "".join(word)
    for n, parts in ((1, PARTS), (2, PARTS), (3, PARTS[:5]))
    for word in product(parts, repeat=n)
]


def test_what_is_proven_is_true():
    """Each pair of short patterns, against all names of up to three characters."""
    matched = {p: {name for name in NAMES if fnmatchcase(name, p)} for p in PATTERNS}
    assert any(matched.values())
    proven = [(p, o) for p in PATTERNS for o in PATTERNS if covers(p, o)]
    assert len(proven) > len(PATTERNS)
    assert [(p, o) for p, o in proven if not matched[p] >= matched[o]] == []


@pytest.mark.parametrize(
    ("pattern", "other"),
    [
        ("*", "t_1"), ("*", "*"), ("**", "a[b-c]?"), ("t_*", "t_1"), ("t_*", "t_C*"),
        ("t_*", "t_*"),
        ("*_id", "user_id"), ("*_id", "user_*_id"), ("t_?", "t_1"), ("?*", "*?"), ("*a*", "bab"),
        ("t_[12]", "t_1"), ("t_[12]", "t_[12]"), ("t[[]x]", "t[[]x]"), ("t", "[t]"),
        ("t_?", "t_[1-9]"),
    ],
)  # fmt: skip
def test_covered(pattern, other):
    assert covers(pattern, other)


@pytest.mark.parametrize(
    ("pattern", "other"),
    [("t_1", "*"), ("t_1", "t_?"), ("t_?", "t_10"), ("t_?", "t_*"), ("t_C*", "t_*"),
     ("T_*", "t_1"), ("t_[!1]", "t_1"), ("t_1", "t_2"), ("?*", "*"), ("t[x]", "t[[]x]"),
     ("a*b", "a*c"), ("a", "aa")],
)  # fmt: skip
def test_not_covered(pattern, other):
    assert not covers(pattern, other)


def rules(*patterns):
    return [TableRule(tables=p, forward=Identity(), backward=Identity()) for p in patterns]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["*", "t_1"], r"embedding\[1\]\.tables: hidden by .*: 't_1' by embedding\[0\] '\*'"),
        (["a", "t_*", "t_1"], r"embedding\[2\]\.tables: hidden .*'t_1' by embedding\[1\] 't_\*'"),
        (["t_1", "t_1"], r"embedding\[1\]\.tables: hidden .*'t_1' by embedding\[0\] 't_1'"),
        (
            ["a*", ["b", "c?"], ["b", "ab", "cc"]],
            r"embedding\[2\].*'b' by embedding\[1\] 'b', 'ab' by embedding\[0\] 'a\*', 'cc' by "
            r"embedding\[1\] 'c\?'",
        ),
    ],
)
def test_a_hidden_rule_is_an_error_that_names_both(patterns, message):
    with pytest.raises(ValueError, match=message):
        Config(embedding=rules(*patterns))


@pytest.mark.parametrize(
    "patterns", [["t_1", "*"], ["t_C*", "t_*", "*"], ["a*", ["ab", "b"]], ["t_[ab]", "t_[bc]"]]
)
def test_a_rule_of_which_something_is_left_is_none(patterns):
    assert len(Config(embedding=rules(*patterns)).embedding) == len(patterns)


def test_names_of_tables_show_the_rest():
    """No pattern is in another, and yet the model's tables leave nothing for the last rule."""
    config = Config(embedding=rules("user_*", "*_id", "*_[ip]*"), source="x.yaml")
    config.check_patterns(["user_id", "item_id", "item_price"])
    message = (
        r"x\.yaml: embedding\[2\]\.tables: embedding\[0\] and embedding\[1\] before it takes all "
        "its tables: item_id, user_id"
    )
    with pytest.raises(ValueError, match=message):
        config.check_patterns(["user_id", "item_id"])


def test_thousands_of_names_are_checked_at_once():
    names = [f"table_of_a_model_{n}" for n in range(4_000)]
    config = Config(embedding=rules(names[:2_000], names[2_000:], "*"))
    assert config.rule_for("table_of_a_model_3999") is config.embedding[1]
