from trec_qcomm.codecs import Identity
from trec_qcomm.testing import check_codec, check_frame


def test_conformance():
    check_codec(Identity())


def test_damaged_frames():
    check_frame(Identity())
