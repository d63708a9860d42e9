"""Signals: numeric figures of one table in one direction since the last probe, of all ranks.

Knows: numbers. Does not know: rows, codecs, how ranks agree.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Signals:
    """Figures that all ranks have agreed on. None: not measured, which no rule reads.

    Args:
        num_nan, num_inf: number of values that are NaN, and infinite, before they are coded.
        num_broken: number of values that are finite on one side of the codec only.
        num_unencodable: number of exchanges that the codec refused.
        num_values: number of values.
        snr_db: signal to noise, 10 log10(sum x^2 / sum e^2).
        rms: root mean square of the values.
        range: typical or largest max - min of a row; the same one at all probes.
        verbatim_share: share of values that an error-bounded codec sent unchanged.
        bits: bits a value really sent, headers of segments included.
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
    bits: float | None = None
