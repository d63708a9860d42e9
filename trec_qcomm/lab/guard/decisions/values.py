"""Values of tables: what their signals ask for at once, and whom they make suspect.

Suspects are tables whose figures have changed. That alone moves no table: the loss decides. It says
which tables to look at first when the loss has grown.

Quality is the signal to noise that tables had with each rung while all was well. A rung is expected
to be as good as it was, and as the coarser ones were. Where the signal to noise falls by DROP_DB
within a few probes, or LOST_RISE of the values are lost that were not, beside values that have
grown by GROWTH, the table has drifted out of its codec's reach, and what was expected stays what it
was. Values that are lost beside others that grew slowly are mostly rows of rare ids, hardly
trained; the loss decides about them.

Knows: figures by table, names of rungs, limits. Does not know: codecs, the loss, how ranks agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf, log2
from typing import Any

from trec_qcomm.lab.guard.decisions.ladder import GuardLimits, Handling, Key, Ladder
from trec_qcomm.lab.records.kinds import GuardReason

SNR_DROP_DB = 6.0  # below the running mean: noise of twice the amplitude
DRIFT = 2.0  # in log2, of rms and range, in either direction: four times or a quarter
VERBATIM_RISE = 0.05  # share of values
MIN_SIGNALS = 3  # before a running mean says anything
REMEMBERED = 10  # probes for which a table is suspect
_WEIGHT = 0.2  # of the latest signal in a running mean
DROP_DB = 10.0  # nearly two bits
LOST_RISE = 0.1  # share of values
GROWTH = 4.0  # of the root mean square
MOSTLY_LOST = 0.5  # share of values beyond which nobody knows how many bits are missing
DB_A_BIT = 6.02
_LATEST_WEIGHT = 0.5  # of the latest signal: trainings change slowly, drifts at once


@dataclass(frozen=True, kw_only=True)
class Signals:
    """Figures since the last probe, of all ranks. None: not measured, which no rule reads.

    Args:
        num_nan, num_inf: number of values that are NaN, and infinite, before they are coded.
        num_broken: number of values that are finite on one side of the codec only.
        num_values: number of values.
        snr_db: signal to noise, 10 log10(sum x^2 / sum e^2).
        rms: root mean square of the values.
        range: typical or largest max - min of a row; the same one at all probes.
        verbatim_share: share of values that an error-bounded codec sent unchanged.
        lost_share: share of the values that are not 0 whose error is as large as they are.
        bits: bits a value really sent, headers of segments included.
    """

    num_nan: int = 0
    num_inf: int = 0
    num_broken: int = 0
    num_values: int | None = None
    snr_db: float | None = None
    rms: float | None = None
    range: float | None = None
    verbatim_share: float | None = None
    lost_share: float | None = None
    bits: float | None = None


@dataclass
class _Track:
    """Running means of one table's figures. Args: count: how many are in each."""

    means: dict[str, float] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    suspect_until: int = -1


class Suspects:
    """Running means of the signals of all tables, and who departed from them lately."""

    def __init__(self) -> None:
        """Begin without signals."""
        self._tracks: dict[Key, _Track] = {}

    def observe(self, probe: int, signals: Mapping[Key, Signals]) -> None:
        """Compare the signals with their running means, and add them."""
        for key, signal in signals.items():
            track = self._tracks.setdefault(key, _Track())
            for name, value in _figures(signal).items():
                count, mean = track.count.get(name, 0), track.means.get(name, value)
                if count >= MIN_SIGNALS and _departs(name, value - mean):
                    track.suspect_until = probe + REMEMBERED
                weight = max(_WEIGHT, 1 / (count + 1))
                track.means[name] = mean + weight * (value - mean)
                track.count[name] = count + 1

    def forget_codec(self, key: Key) -> None:
        """Begin anew with what depends on the codec, which has changed."""
        track = self._tracks.get(key, _Track())
        for name in ("snr_db", "verbatim_share"):
            track.means.pop(name, None)
            track.count.pop(name, None)

    def tables(self, probe: int) -> set[str]:
        """Return the names of tables that are suspect at a probe, for their rows."""
        return {
            table
            for (table, direction), track in self._tracks.items()
            if direction == "forward" and track.suspect_until >= probe
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the running means of each table and direction."""
        return {"tracks": [[*key, asdict(track)] for key, track in self._tracks.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self._tracks = {(t, direction): _Track(**track) for t, direction, track in state["tracks"]}


def _figures(signal: Signals) -> dict[str, float]:
    """Return the figures that are tracked, rms and range as logarithms."""
    figures = {"snr_db": signal.snr_db, "verbatim_share": signal.verbatim_share}
    for name in ("rms", "range"):
        value = getattr(signal, name)
        figures[name] = log2(value) if value is not None and 0 < value < float("inf") else None
    return {name: value for name, value in figures.items() if value is not None}


def _departs(name: str, difference: float) -> bool:
    if name == "snr_db":
        return difference <= -SNR_DROP_DB
    if name == "verbatim_share":
        return difference >= VERBATIM_RISE
    return abs(difference) >= DRIFT


@dataclass
class _Expected:
    """Running means with one rung."""

    snr_db: float | None = None
    lost_share: float | None = None
    rms: float | None = None
    count: int = 0

    def add(self, signal: Signals) -> None:
        self.count += 1
        for name in ("snr_db", "lost_share", "rms"):
            value, mean = getattr(signal, name), getattr(self, name)
            if value is not None:
                setattr(
                    self, name, value if mean is None else mean + _LATEST_WEIGHT * (value - mean)
                )


@dataclass
class Quality:
    """Expectations of all tables, by rung. Args: num_lost: probes in a row without it."""

    num_lost: dict[Key, int] = field(default_factory=dict)
    _expected: dict[Key, dict[str, _Expected]] = field(default_factory=dict)

    def missing_bits(self, key: Key, ladder: Ladder, rung: int, signal: Signals) -> float | None:
        """Return how many bits a value a table misses, at least; None where all is well.

        Where all is well, the signal is added to what is expected.
        """
        by_name = self._expected.setdefault(key, {})
        known = [by_name[name] for name in ladder.names[: rung + 1] if name in by_name]
        missing = _missing([e for e in known if e.count >= MIN_SIGNALS], signal)
        self.num_lost[key] = 0 if missing is None else self.num_lost.get(key, 0) + 1
        if missing is None:
            by_name.setdefault(ladder.names[rung], _Expected()).add(signal)
        return missing

    def state_dict(self) -> dict[str, Any]:
        """Return all as JSON can hold it."""
        expected = [
            [*key, name, asdict(one)]
            for key, by_name in sorted(self._expected.items())
            for name, one in by_name.items()
        ]
        lost = [[*key, count] for key, count in sorted(self.num_lost.items()) if count]
        return {"expected": expected, "num_lost": lost}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.num_lost = {(table, direction): n for table, direction, n in state["num_lost"]}
        self._expected = {}
        for table, direction, name, one in state["expected"]:
            self._expected.setdefault((table, direction), {})[name] = _Expected(**one)


def _missing(expected: list[_Expected], signal: Signals) -> float | None:
    decibels = [e.snr_db for e in expected if e.snr_db is not None]
    shares = [e.lost_share for e in expected if e.lost_share is not None]
    if decibels and signal.snr_db is not None:
        deficit = max(decibels) - DROP_DB - signal.snr_db
        if deficit > 0:
            return deficit / DB_A_BIT
    lost = signal.lost_share
    is_lost = lost is not None and bool(shares) and lost - min(shares) >= LOST_RISE
    if lost is not None and is_lost and _has_grown(expected, signal):
        return inf if lost >= MOSTLY_LOST else 0.0
    return None


def _has_grown(expected: list[_Expected], signal: Signals) -> bool:
    """Return whether values are far larger than they were; True where that is not measured."""
    sizes = [e.rms for e in expected if e.rms is not None]
    return not sizes or signal.rms is None or signal.rms >= GROWTH * max(sizes)


@dataclass(frozen=True)
class Alarm:
    """What is wrong with a table, and what to do about it.

    Args: more_bits: how many bits a value the codec should send more; for `raise`.
    """

    key: Key
    reason: GuardReason
    answer: Handling
    more_bits: float = 0.0


class Alarms:
    """The signals of all tables so far, as far as alarms depend on them."""

    def __init__(self, limits: GuardLimits) -> None:
        """Begin without signals."""
        self._limits = limits
        self._quality = Quality()
        self._num_low: dict[Key, int] = {}  # probes in a row with too little signal to noise
        self._told: set[tuple[Key, GuardReason]] = set()  # and still so

    def check(self, key: Key, signal: Signals, ladder: Ladder, rung: int) -> Alarm | None:
        """Return the first thing that is wrong with a table, unless it was told and stayed so."""
        first: Alarm | None = None
        for alarm, is_wrong in self._cases(key, signal, ladder, rung):
            told = key, alarm.reason
            if not is_wrong:
                self._told.discard(told)
            elif first is None and (alarm.answer == "error" or told not in self._told):
                self._told.add(told)
                first = alarm
        return first

    def _cases(
        self, key: Key, signal: Signals, ladder: Ladder, rung: int
    ) -> Sequence[tuple[Alarm, bool]]:
        limits, snr, least = self._limits, signal.snr_db, self._limits.least_snr_db
        is_coded = rung != ladder.top  # what is exact is not at fault
        low_db = 0.0 if least is None or snr is None or not is_coded else max(0.0, least - snr)
        self._num_low[key] = self._num_low.get(key, 0) + 1 if low_db else 0
        is_low = self._num_low[key] >= limits.raise_after
        missing = self._quality.missing_bits(key, ladder, rung, signal) if is_coded else None
        drifted = is_coded and self._quality.num_lost.get(key, 0) >= limits.raise_after
        return (
            (Alarm(key, "unencodable", limits.on_unencodable), is_coded and signal.num_broken > 0),
            (Alarm(key, "pointless", limits.on_pointless), is_coded and (signal.bits or 0) > 32),
            (Alarm(key, "nan", limits.on_nan), signal.num_nan + signal.num_inf > 0),
            (Alarm(key, "snr", "raise", low_db / DB_A_BIT), is_low),
            (Alarm(key, "drift", limits.on_drift, missing or 0.0), drifted),
        )

    def forget_codec(self, key: Key) -> None:
        """Begin anew with a table that has got another codec."""
        self._num_low.pop(key, None)
        self._quality.num_lost.pop(key, None)
        self._told -= {(key, "snr"), (key, "drift"), (key, "unencodable")}

    def state_dict(self) -> dict[str, Any]:
        """Return all as JSON can hold it."""
        return {
            "num_low": [[*key, count] for key, count in sorted(self._num_low.items()) if count],
            "told": [[*key, reason] for key, reason in sorted(self._told)],
            "quality": self._quality.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self._num_low = {(table, direction): n for table, direction, n in state["num_low"]}
        self._quality.load_state_dict(state["quality"])
        self._told = {((table, direction), reason) for table, direction, reason in state["told"]}
