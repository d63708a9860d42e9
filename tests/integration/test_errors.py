"""What is not supported is refused at construction, by name."""

import re
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import SparseType
from torchrec.distributed.comm_ops import set_use_sync_collectives

from tests.integration.small_model import batch, qcomm_of, shard
from trec_qcomm import Cast, Config, ErrorBounded, Identity, QComm, Rowwise, TableRule, TopK
from trec_qcomm.integration.embedding.session_registry import _check_device
from trec_qcomm.testing import run_ranks


def message_of(make) -> str:
    try:
        make()
    except ValueError as error:
        return str(error)
    return "no error"


def rule(*patterns):
    return TableRule(tables=patterns, forward=Identity(), backward=Identity())


@contextmanager
def sync_collectives():
    """Turn the switch on and off again; TorchRec's own context does not end after an exception."""
    set_use_sync_collectives(True)
    try:
        yield
    finally:
        set_use_sync_collectives(False)


def shard_with_sync_collectives():
    with sync_collectives():
        shard(qcomm_of(Identity()))


def switch_to_sync_collectives():
    dmp = shard(qcomm_of(Identity()))
    with sync_collectives():
        dmp(batch(0, 2))


def ranks_that_differ():
    codec = Rowwise(4) if dist.get_rank() == 0 else Rowwise(8)
    shard(qcomm_of(codec))


def all_messages():
    missing = QComm(Config(embedding=(rule("tw_*", "cw*"),), source="m.yaml"))
    superfluous = QComm(Config(embedding=(rule("tw_*", "user*"), rule("*")), source="s.yaml"))
    return {
        "missing": message_of(lambda: shard(missing)),
        "superfluous": message_of(lambda: shard(superfluous)),
        "output_dtype": message_of(
            lambda: shard(qcomm_of(Identity()), output_dtype=SparseType.FP16)
        ),
        "unsharded": message_of(lambda: shard(qcomm_of(Identity()), more_plans={"over": {}})),
        "sync": message_of(shard_with_sync_collectives),
        "switched": message_of(switch_to_sync_collectives),
        "differ": message_of(ranks_that_differ),
    }


@pytest.fixture(scope="module")
def messages():
    return run_ranks(all_messages, 2)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("missing", ["m.yaml: embedding: no pattern matches table 'dp'", "tw_*, cw*"]),
        ("superfluous", ["s.yaml: embedding[0].tables: 'user*' matches no table", "cw_shared"]),
        ("output_dtype", ["fused_params: output_dtype", "allowed: fp32"]),
        ("unsharded", ["'over' is a Linear, for which no sharder was given"]),
        ("sync", ["use_sync_collectives"]),
        ("switched", ["use_sync_collectives"]),
        (
            "differ",
            [
                "config: ranks of the group have different configs or tables:\n"
                "embedding[0].forward.bits: 4 on rank 0; 8 on rank 1\n"
                "embedding[0].backward.bits: 4 on rank 0; 8 on rank 1"
            ],
        ),
    ],
)
def test_message(messages, case, words):
    for message in (rank[case] for rank in messages):
        for word in words:
            assert word in message


@pytest.mark.parametrize(
    ("device", "backward", "message"),
    [
        ("mps", Identity(), "device mps: trec_qcomm has kernels for cpu and cuda"),
        (
            "cuda:0",
            ErrorBounded(0.01, encoder="vector_lz"),
            "device cuda:0: table 't': no GPU kernels for ErrorBounded(bound=0.01, mode='rel', ",
        ),
    ],
)
def test_devices_without_kernels_are_refused(device, backward, message):
    rules = {"t": TableRule(tables=("*",), forward=Rowwise(4), backward=backward)}
    _check_device(torch.device("cpu"), rules)
    with pytest.raises(ValueError, match=re.escape(message)):
        _check_device(torch.device(device), rules)


@pytest.mark.parametrize(
    "codec",
    [
        Identity(),
        Cast("fp16"),
        Rowwise(2),
        ErrorBounded(0.1),
        ErrorBounded(0.1, encoder="rans"),
        TopK(density=0.5),
    ],
)
def test_codecs_with_kernels_are_not(codec):
    rules = {"t": TableRule(tables=("*",), forward=codec, backward=codec)}
    _check_device(torch.device("cuda:0"), rules)
