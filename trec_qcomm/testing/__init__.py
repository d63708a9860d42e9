"""Conformance kit: checks that every codec must pass, and ranks to run collectives on.

Test a codec of your own (core.codec.Codec says what a codec is) like this:

    from trec_qcomm.testing import check_codec, check_frame

    def test_my_codec():
        check_codec(MyCodec())  # sizes, places, determinism, and the promise of its contract
        check_frame(MyCodec())  # damaged frames are refused

An UNBIASED codec also calls `check_unbiased`. A check that fails raises AssertionError, with the
codec and the case that failed. To test a collective, write a function and give it to `run_ranks`.
All of this runs on CPU.
"""

from trec_qcomm.testing.codecs import (
    awkward_rows,
    check_codec,
    check_unbiased,
    datasets,
    encode,
    error_bounds,
    interleaved_segments,
    max_error_in_bounds,
    round_trip,
)
from trec_qcomm.testing.frames import check_frame, frame_of, open_frame, reseal
from trec_qcomm.testing.ranks import run_ranks

__all__ = [
    "awkward_rows",
    "check_codec",
    "check_frame",
    "check_unbiased",
    "datasets",
    "encode",
    "error_bounds",
    "frame_of",
    "interleaved_segments",
    "max_error_in_bounds",
    "open_frame",
    "reseal",
    "round_trip",
    "run_ranks",
]
