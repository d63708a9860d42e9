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

from trec_qcomm.testing.codecs import awkward_rows as awkward_rows
from trec_qcomm.testing.codecs import check_codec as check_codec
from trec_qcomm.testing.codecs import check_unbiased as check_unbiased
from trec_qcomm.testing.codecs import datasets as datasets
from trec_qcomm.testing.codecs import encode as encode
from trec_qcomm.testing.codecs import error_bounds as error_bounds
from trec_qcomm.testing.codecs import interleaved_segments as interleaved_segments
from trec_qcomm.testing.codecs import max_error_in_bounds as max_error_in_bounds
from trec_qcomm.testing.codecs import round_trip as round_trip
from trec_qcomm.testing.frames import check_frame as check_frame
from trec_qcomm.testing.frames import frame_of as frame_of
from trec_qcomm.testing.frames import open_frame as open_frame
from trec_qcomm.testing.frames import reseal as reseal
from trec_qcomm.testing.ranks import run_ranks as run_ranks
