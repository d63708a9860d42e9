"""Signals, figures of a table in one direction, and Suspects, tables whose figures have changed.

A drift alone moves no table: the loss decides. It says which tables to look at first when the loss
has grown.

Knows: numbers, names of tables. Does not know: rows, codecs, rungs, the loss, how ranks agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log2
from typing import Any

from trec_qcomm.lab.guard.decisions.ladder import Key

SNR_DROP_DB = 6.0  # below the running mean: noise of twice the amplitude
DRIFT = 2.0  # in log2, of rms and range, in either direction: four times or a quarter
VERBATIM_RISE = 0.05  # share of values
MIN_SIGNALS = 3  # before a running mean says anything
REMEMBERED = 10  # probes for which a table is suspect
_WEIGHT = 0.2  # of the latest signal in a running mean


@dataclass(frozen=True, kw_only=True)
class Signals:
    """Figures since the last probe, of all ranks. None: not measured, which no rule reads.

    Args:
        num_nan, num_inf: number of values that are NaN, and infinite, before they are coded.
        num_broken: number of values that are finite on one side of the codec only.
        num_unencodable: number of exchanges that the codec refused.
        num_values: number of values.
        snr_db: signal to noise, 10 log10(sum x^2 / sum e^2).
        rms: root mean square of the values.
        range: typical or largest max - min of a row; the same one at all probes.
        verbatim_share: share of values that an error-bounded codec sent unchanged.
        lost_share: share of the values that are not 0 whose error is as large as they are.
        bits: bits a value really sent, headers of segments included.
        num_held: number of steps, over all ranks, in which the error bound was held.
        held_bits: mean of log2 of how much wider it would have been in these.
    """

    num_nan: int = 0
    num_inf: int = 0
    num_broken: int = 0
    num_unencodable: int = 0
    num_values: int | None = None
    snr_db: float | None = None
    rms: float | None = None
    range: float | None = None
    verbatim_share: float | None = None
    lost_share: float | None = None
    bits: float | None = None
    num_held: int = 0
    held_bits: float | None = None


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
        """Return {table: {direction: running means}}."""
        state: dict[str, Any] = {}
        for (table, direction), track in self._tracks.items():
            state.setdefault(table, {})[direction] = {
                "means": dict(track.means),
                "count": dict(track.count),
                "suspect_until": track.suspect_until,
            }
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self._tracks = {
            (table, direction): _Track(
                dict(track["means"]), dict(track["count"]), track["suspect_until"]
            )
            for table, directions in state.items()
            for direction, track in directions.items()
        }


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
