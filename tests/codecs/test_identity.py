import pytest
import torch

from trec_qcomm.codecs import Identity
from trec_qcomm.ops.binding import default_backend
from trec_qcomm.testing import check_codec, check_frame


def test_conformance():
    check_codec(Identity())


@pytest.mark.triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kit is on CPU")
def test_conformance_of_the_kernels_of_a_gpu():
    with default_backend("gpu"):
        check_codec(Identity())


def test_damaged_frames():
    check_frame(Identity())
