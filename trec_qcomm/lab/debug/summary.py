"""Summary of a recorded run for a terminal: what stands out, and the noisiest tables."""

import math
from collections.abc import Sequence

from trec_qcomm.core.aligned import aligned
from trec_qcomm.lab.debug.findings import Finding, findings
from trec_qcomm.lab.debug.recorded import DebugRun, PlaceNoise, Tried, noisiest, tried_of

GAIN_DB = 6.0  # what a shadow must gain to be named: half the error, as of one bit more
_WRONG_HEAD = ("step", "where", "ranks", "what")
_NOISE_HEAD = (
    "dB", "least", "at step", "bits", "lost", "where", "codec", f"cheapest with {GAIN_DB:g} dB more"
)  # fmt: skip


def run_summary(run: DebugRun, *, top: int) -> str:
    """Return the findings, the noisiest places, and last the first and the worst finding.

    Args: run: the run.  top: number of lines to show of each.
    """
    wrong, parts = findings(run.records), [str(run), ""]
    if wrong:
        parts += ["What stands out, the first first:", "", _wrong_table(wrong[:top])]
        if len(wrong) > top:
            parts += [f"{len(wrong) - top} more; --top {len(wrong)} shows all"]
        parts += [""]
    if noisy := [noise for noise in noisiest(run) if noise.least < math.inf]:
        shown = _some_of_each(noisy, top)
        parts += ["The noisiest of each direction:", "", _noise_table(run, shown), ""]
    return "\n".join([*parts, *_last(wrong)])


def _wrong_table(wrong: Sequence[Finding]) -> str:
    """Return a table with an advice below each of its lines."""
    cells = [(str(f.step), str(f.place), ",".join(map(str, f.ranks)), f.what) for f in wrong]
    head, *lines = aligned([_WRONG_HEAD, *cells], right=(0,)).splitlines()
    pairs = zip(lines, wrong, strict=True)
    return "\n".join([head, *(f"{line}\n      -> {finding.advice}" for line, finding in pairs)])


def _some_of_each(noisy: Sequence[PlaceNoise], top: int) -> list[PlaceNoise]:
    """Return the noisiest, equally many of each direction and `top` in all."""
    directions = {noise.place.direction for noise in noisy}
    most = -(-top // len(directions))
    by_direction = {d: [n for n in noisy if n.place.direction == d][:most] for d in directions}
    return [noise for noise in noisy if noise in by_direction[noise.place.direction]][:top]


def _noise_table(run: DebugRun, noisy: Sequence[PlaceNoise]) -> str:
    tried = tried_of(run)
    lines = [_noise_cells(run, noise, tried.get(noise.place, [])) for noise in noisy]
    return aligned([_NOISE_HEAD, *lines], right=(0, 1, 2, 3, 4))


def _noise_cells(run: DebugRun, noise: PlaceNoise, tried: Sequence[Tried]) -> tuple[str, ...]:
    least, at = min(
        (d, step) for d, step in zip(noise.decibels, run.steps, strict=True) if d is not None
    )
    better = [t for t in tried if not t.is_used and t.decibels >= noise.median + GAIN_DB]
    named = [f"{t.codec}: {t.decibels:.1f} dB, {t.bits:.2f} bits" for t in better[:1]]
    return (
        "exact" if noise.median == math.inf else f"{noise.median:.1f}", f"{least:.1f}", str(at),
        "" if noise.bits is None else f"{noise.bits:.2f}",
        "" if noise.lost is None else f"{noise.lost:.0%}",
        str(noise.place), noise.codec, *(named or [""]),
    )  # fmt: skip


def _last(wrong: Sequence[Finding]) -> list[str]:
    if not wrong:
        return ["Nothing stands out."]
    first, worst = wrong[0], max(wrong, key=lambda finding: finding.severity)
    words = {"First": first} | ({"Worst": worst} if worst.severity > first.severity else {})
    return [
        f"{word}: step {f.step}, {f.place}: {f.what}.\nWhat to do: {f.advice}."
        for word, f in words.items()
    ]
