"""The speed-up is its formula, and times are those of the rows, however few."""

import pytest
import torch

from trec_qcomm.codecs import Cast, Identity, Rowwise
from trec_qcomm.lab.preview.measure import CodecPreview, coding_s


@pytest.mark.parametrize("link_gb_s", [0.01, 1, 12.5])
def test_the_speed_up_is_time_over_time(link_gb_s) -> None:
    shared = {"codec": "c", "raw_nbytes": 3e9, "sent_nbytes": 3e9, "signal_to_noise_db": 1.0}
    measured = CodecPreview(wire_nbytes=3e9 / 8, encode_s=3 / 0.5, decode_s=3 / 2, **shared)
    coded_s = 3 / 8 / link_gb_s + 3 / 0.5 + 3 / 2
    assert measured.speed_up(link_gb_s) == pytest.approx(3 / link_gb_s / coded_s, rel=1e-14)
    free = CodecPreview(wire_nbytes=3e9 / 5, encode_s=0.0, decode_s=0.0, **shared)
    assert free.speed_up(link_gb_s) == 5


@pytest.mark.parametrize("shapes", [[(7, 3)], [(5, 16), (1, 16)], [(2048, 64), (900, 64)]])
@pytest.mark.parametrize("codec", [Identity(), Cast("bf16"), Rowwise(4)], ids=repr)
def test_times_are_those_of_the_rows(codec, shapes) -> None:
    blocks = [torch.randn(*shape) for shape in shapes]
    raw_gb = sum(4 * rows.numel() for rows in blocks) / 1e9
    assert all(0.001 < raw_gb / seconds < 1e3 for seconds in coding_s(codec, blocks))
