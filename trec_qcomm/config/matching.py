"""PatternRules: the first of several rules with a pattern that matches a name holds for it.

Knows: shell patterns, places in a config. Does not know: what rules say.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

from trec_qcomm.core.fields import read


def patterns_of(patterns: object, name: str = "tables") -> tuple[str, ...]:
    """Return one pattern or a sequence of them as a tuple.

    Args: name: name of the field that holds them, for errors.
    Raises: ValueError: neither.
    """
    listed: tuple[str, ...] = read(Sequence[str], patterns, name)
    if not listed or "" in listed:
        raise ValueError(f"{name}: expected a pattern or a list of patterns, got {patterns!r}")
    return listed


Patterns = Annotated[Sequence[str], patterns_of]


@dataclass(frozen=True)
class PatternRules:
    """Patterns of a list of rules. The first rule with a pattern that matches a name holds for it.

    Args:
        where: key of the list in a config, such as "embedding".
        key: key of the patterns in a rule, such as "tables".
        noun: kind of thing that has the names, such as "table".
        patterns: the patterns of each rule.
        is_list: whether a config has a list under `where`, and not a single rule.
    """

    where: str
    key: str
    noun: str
    patterns: Sequence[Sequence[str]]
    is_list: bool = True

    def place(self, number: int) -> str:
        """Return the place of a rule in the config, such as "embedding[0]"."""
        return f"{self.where}[{number}]" if self.is_list else self.where

    def number_of(self, name: str) -> int | None:
        """Return the index of the rule that holds for a name; None if no rule matches."""
        for number, patterns in enumerate(self.patterns):
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                return number
        return None

    def holder(self, name: str, source: str) -> int:
        """Return the index of the rule that holds for a name.

        Args: source: name of the config, for errors.
        Raises: ValueError: no pattern matches.
        """
        number = self.number_of(name)
        if number is None:
            known = ", ".join(pattern for patterns in self.patterns for pattern in patterns)
            raise ValueError(
                f"{source}: {self.where}: no pattern matches {self.noun} {name!r}; "
                f"patterns: {known}; * would match it"
            )
        return number

    def check_names(self, names: Iterable[str], source: str) -> None:
        """Raise ValueError at a pattern that matches no name, or a rule that holds for none.

        Args: names: all names of the model.  source: name of the config, for errors.
        """
        names = sorted(names)
        for number, patterns in enumerate(self.patterns):
            for pattern in patterns:
                if not any(fnmatchcase(name, pattern) for name in names):
                    raise ValueError(
                        f"{source}: {self.place(number)}.{self.key}: {pattern!r} matches no "
                        f"{self.noun}; the model has: {', '.join(names) or f'no {self.noun}s'}"
                    )
        holders = {name: self.number_of(name) for name in names}
        for number, patterns in enumerate(self.patterns):
            if number not in holders.values():
                taken = [n for n in names if any(fnmatchcase(n, p) for p in patterns)]
                numbers = sorted({n for name in taken if (n := holders[name]) is not None})
                by = " and ".join(map(self.place, numbers))
                raise ValueError(
                    f"{source}: {self.place(number)}.{self.key}: {by} before it takes all its "
                    f"{self.noun}s: {', '.join(taken)}"
                )
