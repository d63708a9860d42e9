"""Claims of a paper and the verdict that the records give, as a table.

Knows: words and verdicts. Does not know: how anything was measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

HOLDS, FAILS, OPEN = "holds", "does not hold here", "cannot be told"
VERDICTS = (HOLDS, FAILS, OPEN)
Source = Literal["abstract", "artefact", "ours"]
SOURCES = {"abstract": "abstract", "artefact": "artefact", "ours": "our reading"}
HEAD = ("claim", "by", "setting", "result", "verdict", "to tell more")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim, what was measured of it, and the verdict.

    Args:
        text: the claim in one sentence; in quotation marks only where these are the paper's words.
        source: where it is from: the paper's abstract, the authors' published code, or our own
            reading of what is not public.
        setting: model, rows, ranks, seeds.
        result: figures with their interval.
        verdict: HOLDS, FAILS or OPEN.
        to_tell: what it would take to say more; empty where nothing is left.
    Raises: ValueError: an unknown source or verdict; an open verdict that does not say what it
        would take.
    """

    text: str
    source: Source
    setting: str
    result: str
    verdict: str
    to_tell: str = ""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source {self.source!r}: expected one of {', '.join(SOURCES)}")
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict {self.verdict!r}: expected one of {', '.join(VERDICTS)}")
        if self.verdict == OPEN and not self.to_tell:
            raise ValueError(f"claim {self.text!r}: to_tell is empty, but the verdict is open")


def table(claims: Iterable[Claim]) -> str:
    """Return markdown, a line a claim."""
    rows = [
        (c.text, SOURCES[c.source], c.setting, c.result, f"**{c.verdict}**", c.to_tell or "-")
        for c in claims
    ]
    lines = [HEAD, ("---",) * len(HEAD), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)
