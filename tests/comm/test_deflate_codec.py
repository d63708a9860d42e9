"""The kit accepts a codec of variable size."""

import pytest
import torch

from tests.comm.deflate_codec import Deflate
from trec_qcomm.core.codec import Codec
from trec_qcomm.testing import check_codec, check_frame


def test_conformance():
    check_codec(Deflate(), dims=(1, 7))


def test_damaged_frames():
    check_frame(Deflate(), num_mutations=50)


def test_a_class_that_does_not_derive_from_codec_counts_as_one():
    assert Codec not in Deflate.__mro__
    codec = Deflate()
    assert isinstance(codec, Codec)
    assert not codec.follows_forward
    assert codec.keeps_nonfinite
    assert not codec.may_refuse
    assert not codec.has_gpu_kernels
    with pytest.raises(ValueError, match=r"Deflate.* does not take rows of torch\.float16"):
        codec.for_values(torch.float16)
