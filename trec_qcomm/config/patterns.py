"""Shell patterns on table names: which pattern matches all that another one matches.

Knows: patterns as fnmatch reads them. Does not know: rules, tables of a model.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import groupby

Token = tuple[str, str]  # kind ("char", "class", "any", "run") and text
_RUN, _ANY = ("run", "*"), ("any", "?")


def covers(pattern: str, other: str) -> bool:
    """Return whether a pattern is known to match every name that the other one matches.

    True is proven. False is not: what two classes of several characters (`[a-c]`) or two runs
    (`*a*`) have in common is not worked out.
    """
    return _covers(_tokens(pattern), _tokens(other))


def is_glob(pattern: str) -> bool:
    """Return whether the pattern may match more than the name that it is."""
    return any(sign in pattern for sign in "*?[")


@lru_cache(4096)
def _tokens(pattern: str) -> tuple[Token, ...]:
    """Return the pattern's parts. `*?` and `?*` are the same, and so are `[x]` and x."""
    tokens: list[Token] = []
    at = 0
    while at < len(pattern):
        end = at + 1
        if pattern[at] == "[":
            close = pattern.find("]", at + 2 + pattern.startswith("!", at + 1))
            end = at + 1 if close < 0 else close + 1
        text = pattern[at:end]
        if text in "*?":
            tokens.append(_RUN if text == "*" else _ANY)
        elif len(text) == 1:
            tokens.append(("char", text))
        else:
            tokens.append(("char", text[1]) if len(text) == 3 else ("class", text))
        at = end
    ordered: list[Token] = []
    for is_wild, group in groupby(tokens, key=lambda token: token in (_RUN, _ANY)):
        members = list(group)
        if is_wild:
            anys = [token for token in members if token == _ANY]
            members = anys + [_RUN] * (len(anys) < len(members))
        ordered += members
    return tuple(ordered)


def _covers(pattern: Sequence[Token], other: Sequence[Token]) -> bool:
    """Match a pattern with the tokens of another one in the place of characters."""
    # reached[j]: whether the tokens of `pattern` so far match the first j of `other`
    reached = [True] + [False] * len(other)
    for token in pattern:
        if token == _RUN:
            first = reached.index(True) if True in reached else len(reached)
            reached = [j >= first for j in range(len(reached))]
        else:
            steps = (reached[j] and _matches_one(token, other[j]) for j in range(len(other)))
            reached = [False, *steps]
        if True not in reached:
            return False
    return reached[-1]


def _matches_one(token: Token, other: Token) -> bool:
    """Return whether a token matches each single character that the other token stands for."""
    if other == _RUN:
        return False
    (kind, text), (other_kind, other_text) = token, other
    if token in (_ANY, other):
        return True
    return kind == "class" and other_kind == "char" and fnmatchcase(other_text, text)
