"""Every kind of codec passes the conformance kit, and refuses damaged frames."""

import pytest

from tests.codecs import test_error_bounded, test_minifloat, test_rowwise
from trec_qcomm.codecs import Cast, Identity
from trec_qcomm.testing import check_codec, check_frame

CODECS = [Identity(), *test_error_bounded.ALL, *test_minifloat.ALL, *test_rowwise.ALL]
OF_FRAMES = [Identity(), Cast("fp16"), Cast("bf16"), *test_error_bounded.ALL]
OF_FRAMES += [*test_minifloat.NEAREST, *test_rowwise.NEAREST]


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_conformance(codec):
    check_codec(codec)


@pytest.mark.parametrize("codec", OF_FRAMES, ids=repr)
def test_damaged_frames(codec):
    check_frame(codec)
