"""Summary of the debugger's records for a terminal: the worst, and what to do about it."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

from trec_qcomm.lab.debug.findings import Finding, findings
from trec_qcomm.lab.records import DebugRecord

WORST = 5
_OF_ONE_KIND = 2
_WIDTH = 100


class Cost(Protocol):
    """What measuring took; see integration.debugging.recorder."""

    @property
    def measured_s(self) -> float:
        """Seconds of the measurements."""

    @property
    def num_steps(self) -> int:
        """Number of measured steps."""

    @property
    def share(self) -> float:
        """Share of the time from measured step to measured step."""


def summary(records: Sequence[DebugRecord], cost: Cost) -> str:
    """Return the worst findings and the cost of measuring as text.

    Args: records: records of one rank or several.  cost: what measuring took.
    """
    if not records:
        return "debug: nothing was measured so far"
    names = {(r.name, r.direction) for r in records if not r.is_shadow}
    steps = sorted({r.step for r in records})
    lines = [
        f"debug: {len(names)} tables, parameters and directions in {len(steps)} of the steps "
        f"{steps[0]} to {steps[-1]}; measuring took {cost.measured_s:.2f} s"
        + (f", {cost.share:.2%} of the time" if cost.num_steps > 1 else "")
    ]
    worst = findings(records)
    if not worst:
        lines.append("nothing stands out; the noisiest:")
        lines += _noisiest(records)
    for number, (finding, more) in enumerate(_worst(worst), 1):
        lines += _lines_of(number, finding, more)
    return "\n".join(lines)


def _worst(ordered: Sequence[Finding]) -> Iterator[tuple[Finding, int]]:
    """Yield the worst findings, few of each kind, and how many more of that kind there are."""
    total = Counter(finding.kind for finding in ordered)
    shown: Counter[str] = Counter()
    for finding in ordered:
        if sum(shown.values()) < WORST and shown[finding.kind] < _OF_ONE_KIND:
            shown[finding.kind] += 1
            is_last = shown[finding.kind] == _OF_ONE_KIND
            yield finding, total[finding.kind] - _OF_ONE_KIND if is_last else 0


def _lines_of(number: int, finding: Finding, more: int) -> list[str]:
    where = f"{finding.name}, {finding.direction}" + (f" ({finding.site})" if finding.site else "")
    text = f"{where}, since step {finding.step}: {finding.what}"
    text += f"; and {more} more like it" if more else ""
    first = textwrap.wrap(text, _WIDTH, initial_indent=f"{number}. ", subsequent_indent="   ")
    return first + textwrap.wrap(
        f"-> {finding.advice}", _WIDTH, initial_indent="   ", subsequent_indent="      "
    )


def _noisiest(records: Sequence[DebugRecord]) -> list[str]:
    last = {(r.name, r.direction, r.site): r for r in records if not r.is_shadow}
    noisy = sorted((r for r in last.values() if r.snr_db is not None), key=lambda r: r.snr_db or 0)
    return [
        f"   {r.snr_db:5.1f} dB  {r.bits or 0:5.2f} bits a value  {r.name}, {r.direction}, step "
        f"{r.step}"
        for r in noisy[:WORST]
    ]
