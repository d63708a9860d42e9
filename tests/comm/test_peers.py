"""Texts that ranks tell one another, and how: as text, not as objects."""

from pathlib import Path
from unittest import mock

import pytest
import torch.distributed as dist

import trec_qcomm
from trec_qcomm.comm import peers
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.testing import run_ranks

TEXTS = ["a" * 1000, "", "\N{SNOWMAN} ünïcode"]


def gathered():
    ours = peers.Peers(dist.group.WORLD)
    texts = ours.gather_texts(TEXTS[dist.get_rank()], "test")
    with (
        mock.patch.object(peers, "_MAX_TEXT_NBYTES", 999),
        pytest.raises(CorruptFrameError, match="frame from rank 0: test: 1000 bytes"),
    ):
        ours.gather_texts(TEXTS[dist.get_rank()], "test")
    return texts


@pytest.mark.dist
def test_each_rank_gets_the_texts_of_all():
    assert run_ranks(gathered, 3, timeout_s=60) == [TEXTS] * 3


def test_the_package_sends_no_python_objects():
    package = Path(trec_qcomm.__file__).parent
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for name in ("gather_object", "broadcast_object_list", "scatter_object", "send_object"):
            assert name not in text, path
