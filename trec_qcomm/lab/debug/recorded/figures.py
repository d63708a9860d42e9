"""Figures that are compared between two runs: how, from which difference on, what to do then."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trec_qcomm.lab.debug.recorded.run import DebugRun, Place


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A figure that is compared.

    Args:
        field: name of the figure.
        words: what it is.
        by: how two values are compared: by the logarithm of their ratio to base 2, by their
            difference, or by how much B's is above A's, or below it.
        limit: difference that counts where there is no null run.
        floor: least difference that counts, however equal the null run is.
        is_of_codec: whether it is about a codec, so that an exact run has none to compare with.
        advice: what to do where B differs.
    """

    field: str
    words: str
    by: Literal["ratio", "difference", "rise", "drop"]
    limit: float = 0.0
    floor: float = 0.0
    is_of_codec: bool = False
    advice: str


_SOURCE = "look for what feeds this table in that step: ids, lr, a restored checkpoint"
_COARSER = "give this table more bits or a tighter bound, or compare its codec with A's"
# In the order of causes: what enters a codec, how it is set, what it makes of it.
# Counts need no limit: of a good run they are 0. A factor of 2 (1 of its logarithm) and 6 dB, which
# is half or twice the error, are what one codec bit makes; training moves norms by less within the
# steps of an epoch. Floors are a tenth of the limits: figures that repeat exactly in the null run,
# such as bits of a codec of fixed size, must not make rounding a difference.
COMPARED = (
    Compared(
        field="num_nan", words="NaN", by="rise",
        advice="find what made it: the loss, a division, a bad batch; then nonfinite: raise",
    ),
    Compared(field="num_inf", words="inf", by="rise", advice="look for an overflow before it"),
    Compared(
        field="num_broken", words="values that codec made or lost NaN or inf of", by="rise",
        advice="use a codec of wider range, such as bf16 in the place of fp16",
    ),
    Compared(
        field="rms", words="root mean square", by="ratio", limit=1.0, floor=0.1, advice=_SOURCE
    ),
    Compared(
        field="norm_median", words="median norm of a row", by="ratio", limit=1.0, floor=0.1,
        advice=_SOURCE,
    ),
    Compared(
        field="range_median", words="median range of a row", by="ratio", limit=1.0, floor=0.1,
        advice=_SOURCE,
    ),
    Compared(
        field="peak", words="largest value over a row's rms", by="ratio", limit=1.0, floor=0.1,
        advice="rows are heavy-tailed: more bits, or float6, which rounds values by their own size",
    ),
    Compared(
        field="zero_share", words="share of zeros", by="difference", limit=0.25, floor=0.025,
        advice="a table that nobody looks up, or gradients that a codec or the loss zeroes",
    ),
    Compared(
        field="residual_over_gradient", words="residual over gradient", by="ratio", limit=1.0,
        floor=0.1, advice="the residual holds what is never sent: more bits, or a lower threshold",
    ),
    Compared(
        field="tolerance", words="bound or threshold", by="ratio", limit=1.0, floor=0.1,
        is_of_codec=True, advice="the configs differ here: compare this table's rule with A's",
    ),
    Compared(
        field="snr_db", words="signal to noise in dB", by="drop", limit=6.0, floor=0.6,
        is_of_codec=True, advice=_COARSER,
    ),
    Compared(
        field="lost_share", words="share of values lost", by="rise", limit=0.25, floor=0.025,
        is_of_codec=True, advice=_COARSER,
    ),
    Compared(
        field="bits", words="bits a value", by="ratio", limit=1.0, floor=0.1,
        is_of_codec=True, advice="the codecs differ, or the rows' values: see the other figures",
    ),
)  # fmt: skip


def sizes_of(
    figure: Compared, place: Place, a: DebugRun, b: DebugRun
) -> Iterator[tuple[int, float, float, float]]:
    """Yield step, both values and how B differs from A, where both runs have the figure.

    That is signed. Left out are ratios of 0, which the share of zeros shows, and what a codec of B
    does where A is exact, as it is meant to do.
    """
    for step, in_b in b.figures[place].items():
        in_a = a.figures[place].get(step, {})
        if figure.field not in in_a or figure.field not in in_b:
            continue
        if figure.is_of_codec and in_a.get("snr_db") == math.inf:
            continue
        x, y = in_a[figure.field], in_b[figure.field]
        if figure.by != "ratio":
            yield step, x, y, y - x
        elif x > 0 and y > 0:
            yield step, x, y, math.log2(y / x)


def counted(figure: Compared, difference: float) -> float:
    """Return the size of a difference of `sizes_of`; 0 where only the other sign counts."""
    if figure.by == "rise":
        return max(difference, 0.0)
    return max(-difference, 0.0) if figure.by == "drop" else abs(difference)
