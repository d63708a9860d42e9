"""The kit accepts a codec of variable size."""

from tests.comm.deflate_codec import Deflate
from trec_qcomm.testing import check_codec, check_frame


def test_conformance():
    check_codec(Deflate(), dims=(1, 7))


def test_damaged_frames():
    check_frame(Deflate(), num_mutations=50)
