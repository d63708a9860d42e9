"""Codec fbgemm in all-reduces: the sums are those of FBGEMM's own round trips."""

from typing import get_args

import pytest

from tests.comm.dense.reductions import gradients, played, reductions, same_bits
from tests.ext.fbgemm.fbgemm_round_trips import RoundTrip
from trec_qcomm import Fbgemm, Identity
from trec_qcomm.comm.dense.all_reduce import ALGORITHMS
from trec_qcomm.ext.fbgemm.codec import Precision


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("precision", get_args(Precision))
def test_an_all_reduce_equals_one_with_fbgemms_round_trip(precision, algorithm):
    numels, buckets = [1000, 7, 300], gradients([1000, 7, 300], 3)
    ours, theirs, exact = (
        played(reductions(algorithm, 3, codec), numels, buckets)
        for codec in (Fbgemm(precision), RoundTrip(precision), Identity())
    )
    for result in ours:
        assert same_bits(result, theirs[0])
        assert not same_bits(result, exact[0])
