"""GuardLimits: when a guard moves a table to another codec, and how often.

Knows: numbers. Does not know: codecs, ladders.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

from trec_qcomm.core.codec import check_choice

Action = Literal["switch", "warn"]
Handling = Literal["error", "warn", "raise", "exact"]


@dataclass(frozen=True, kw_only=True)
class GuardLimits:
    """Limits that a guard keeps, and what it does beyond them. A probe is one look at the loss.

    Args:
        limit_ne: the most that codecs may add to the loss, in percent of the loss without them.
        action: `switch` moves tables to other codecs; `warn` only tells, once an episode.
        raise_after: number of probes in a row that must be above the limit before a table is moved
            to a finer codec, besides the mean that must be shown to be above it.
        lower_after: number of calm probes in a row after which one table is moved to a coarser
            codec, and after which an episode has ended.
        patience: number of probes for which a rung that a table had to leave is not tried again;
            twice as many after the second time, and so on.
        max_lowers: number of times that a table is moved down to one and the same rung; 0: never.
        least_snr_db: signal to noise, in dB, below which a table is moved to a finer codec after
            `raise_after` probes; None never moves it for that.
        on_unencodable: what becomes of a table with values that its codec refuses or does not
            carry: `error`, or `exact`, float32 from then on.
        on_pointless: what becomes of a table whose coded bytes are more than float32's.
        on_nan: what becomes of a table whose values are NaN or infinite before they are coded.
        on_drift: what becomes of a table whose signal to noise falls by 10 dB within a few probes,
            or of whose values a tenth is lost that was not, beside values that grew fourfold, for
            `raise_after` probes: `raise`, as many rungs as it takes, or `warn`.
    """

    limit_ne: float = 0.02
    action: Action = "switch"
    raise_after: int = 2
    lower_after: int = 10
    patience: int = 20
    max_lowers: int = 3
    least_snr_db: float | None = None
    on_unencodable: Handling = "exact"
    on_pointless: Handling = "exact"
    on_nan: Handling = "warn"
    on_drift: Handling = "raise"

    def __post_init__(self) -> None:
        if not _is_number(self.limit_ne) or self.limit_ne <= 0:
            raise ValueError(f"limit_ne: {self.limit_ne!r} is not a number > 0, in percent")
        check_choice("action", self.action, get_args(Action))
        for name in ("raise_after", "lower_after", "patience"):
            _check_integer(name, getattr(self, name), 1)
        _check_integer("max_lowers", self.max_lowers, 0)
        if self.least_snr_db is not None and not _is_number(self.least_snr_db):
            raise ValueError(f"least_snr_db: {self.least_snr_db!r} is not a number")
        check_choice("on_unencodable", self.on_unencodable, ("error", "exact"))
        check_choice("on_pointless", self.on_pointless, ("error", "warn", "exact"))
        check_choice("on_nan", self.on_nan, ("error", "warn", "exact"))
        check_choice("on_drift", self.on_drift, ("warn", "raise"))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _check_integer(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise ValueError(f"{name}: {value!r} is not an integer >= {least}")
