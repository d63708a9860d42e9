"""Check that all ranks have the same config; the error names the key that differs.

Knows: process groups, texts by key. Does not know: TorchRec, what is compared.
"""

import json
from collections.abc import Mapping

import torch.distributed as dist

from trec_qcomm.comm.peers import Peers
from trec_qcomm.config.differences import text_of_ranks
from trec_qcomm.core.errors import CorruptFrameError


def check_equal(pg: dist.ProcessGroup, ours: Mapping[str, str], what: str) -> None:
    """Raise ValueError on all ranks if the texts of any two differ. Collective.

    Args: ours: this rank's {key: text}.  what: beginning of the error's message.
    Raises: ValueError: ranks differ.  CorruptFrameError: a rank sent no such dict.  LostPeerError:
        a peer is gone.
    """
    peers = Peers(pg)
    texts = peers.gather_texts(json.dumps(dict(ours)), "comparison of configs")
    gathered = [_texts_by_key(text, rank) for rank, text in zip(peers.ranks, texts, strict=True)]
    differing = text_of_ranks(gathered)
    if differing:
        raise ValueError(f"{what}:\n{differing}")


def _texts_by_key(text: str, rank: int) -> dict[str, str]:
    try:
        texts = json.loads(text)
    except (ValueError, RecursionError):
        texts = None
    if not isinstance(texts, dict) or not all(isinstance(t, str) for t in texts.values()):
        raise CorruptFrameError("comparison of configs: no JSON object of texts", rank=rank)
    return texts
