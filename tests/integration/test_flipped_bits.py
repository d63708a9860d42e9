"""One flipped bit in each place of a training: what is seen, when and by whom.

A checkpoint with digests is tests/examples/test_criteo_checkpoints.py's, a message of ids in any
group test_sender_names.py's. Knows: small models. Does not know: why bits flip.
"""

import re
from copy import deepcopy
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.dist_data import KJTAllToAll
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.integration import small_model
from tests.integration.gradients.test_device import net, train
from tests.rank_programs import results_of, run_programs
from trec_qcomm import Rowwise, compress_ddp
from trec_qcomm.comm import exchange
from trec_qcomm.core.counters import Traffic
from trec_qcomm.integration.ids.sent_ids import record_sent_ids

RULE = {"codec": {"codec": "rowwise", "bits": 4}, "block": 16, "min_numel": 8}
RULE |= {"error_feedback": True, "algorithm": "two_shot"}
STEPS = 5


def flip(values, bit=18):
    """Flip one bit of a value that is not 0.

    Args: bit: 18 is one of float32's mantissa, 26 one of its exponent.
    """
    place = values.flatten().nonzero()[0]
    values.view(-1).view(torch.int32)[place] ^= 1 << bit


def compressed(every, state=None):
    """Return a DDP and its gradients, resumed from a state of both if one is given."""
    ddp = DistributedDataParallel(net())
    handle = compress_ddp(ddp, {"dense": RULE, "check_replicas_every": every})
    if state is not None:
        ddp.load_state_dict(state[0])
        handle.load_state_dict(state[1])
    return ddp, handle


def replicated_weight(every):
    """Flip a bit of rank 1 after step 1; return the error and its step, and the training after.

    What follows resumes from the state before, as from a checkpoint.
    """
    undisturbed = train(compressed(0)[0], range(STEPS))
    ddp, handle = compressed(every)
    train(ddp, range(2))
    state = deepcopy(ddp.state_dict()), handle.state_dict()
    if dist.get_rank() == 1:
        with torch.no_grad():
            flip(ddp.module[2].weight)
    text, step = "", 0
    try:
        for step in range(2, STEPS):
            train(ddp, [step])
    except RuntimeError as error:
        text = str(error)
    resumed = train(compressed(every, state)[0], range(2, STEPS))
    same = all(map(torch.equal, resumed, undisturbed[2:]))
    return {"text": text, "step": step, "resumed as undisturbed": same}


def residual(every):
    """Flip a bit of rank 1 after step 1; return the gradients of all steps, and without a flip."""
    undisturbed = train(compressed(0)[0], range(STEPS))
    ddp, handle = compressed(every)
    train(ddp, range(2))
    state = handle.state_dict()
    if dist.get_rank() == 1:
        (of_rank,) = (value for key, value in state.items() if key.startswith("rank1of2"))
        flip(next(iter(of_rank["residuals"]["2.weight"].values())), bit=26)
    handle.load_state_dict(state)
    return {"gradients": train(ddp, range(2, STEPS)), "undisturbed": undisturbed[2:]}


def trained(flipped):
    """Return the losses of this rank; a bit of a table on rank 0 flips after two steps."""
    dmp = small_model.shard(small_model.qcomm_of(Rowwise(8), Rowwise(8)))
    optimizer = small_model.dense_optimizer(dmp)
    losses = small_model.train(dmp, optimizer, range(2))
    if flipped and dist.get_rank() == 0:
        (table,) = dmp.state_dict()["ebc.embedding_bags.tw_first.weight"].local_shards()
        table.tensor.view(torch.int32)[:, 0] ^= 1 << 18
    return losses + small_model.train(dmp, optimizer, range(2, STEPS))


def ids(packs):
    """Flip a bit in what arrives from the last rank; return the rank that is named, and the ids."""
    inner = KJTAllToAll(dist.group.WORLD, [1, 1])
    record_sent_ids(SimpleNamespace(_dist=inner), Traffic("input", ["all"]), lambda: packs)
    batch = KeyedJaggedTensor(["a", "b"], torch.arange(12), lengths=torch.ones(12).int())
    tensors = inner(batch).wait()
    for pending in tensors._awaitables:
        pending.wait()
    arrived = tensors._output_tensors[0 if packs else 1]  # else behind the lengths
    arrived[-1] ^= 1
    try:
        return {"named": None, "ids": tensors.wait().values().tolist()}
    except RuntimeError as error:
        return {"named": error.rank, "text": str(error)}


def frame(share):
    """Flip a bit in each rank's frame to the other one; return the errors.

    Args: share: where, from 0, its begin, to 1.
    """
    dmp = small_model.shard(small_model.qcomm_of(Rowwise(8), Rowwise(8)))
    send = exchange._send_each

    def flipping(peers, sent, received):
        to_other = torch.split(sent.buffer, sent.nbytes)[1 - dist.get_rank()]
        to_other[int(share * len(to_other))] ^= 1
        return send(peers, sent, received)

    with mock.patch.object(exchange, "_send_each", flipping):
        try:
            dmp(small_model.batch(1, 6))
        except RuntimeError as error:
            return {"named": error.rank, "text": str(error)}
    return {"named": None}


def checkpoint(folder):
    """Flip a bit of rank 0's table in a file of torch's own; return the error, and what differs."""
    dmp = small_model.shard(small_model.qcomm_of(Rowwise(8)))
    table = dmp.state_dict()["ebc.embedding_bags.tw_first.weight"]
    dcp.save({"model": dmp.state_dict()}, checkpoint_id=folder)
    if dist.get_rank() == 0:
        saved = table.local_shards()[0].tensor.numpy().tobytes()
        for file in folder.glob("*.distcp"):
            data = bytearray(file.read_bytes())
            if saved in data:
                data[data.index(saved) + 2] ^= 1
                file.write_bytes(data)
    dist.barrier()
    before = [shard.tensor.clone() for shard in table.local_shards()]
    try:
        dcp.load({"model": dmp.state_dict()}, checkpoint_id=folder)
    except Exception as error:
        return {"text": f"{type(error).__name__}: {error}"}
    after = [shard.tensor for shard in table.local_shards()]
    return {"text": "", "differs": not all(map(torch.equal, before, after))}


def run(program):
    """Run one of the functions above."""
    function, argument = program
    return function(argument)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    programs = {
        "weight, checked": (replicated_weight, 4), "weight": (replicated_weight, 0),
        "residual": (residual, 1), "table": (trained, True), "no flip": (trained, False),
        "packed ids": (ids, True), "plain ids": (ids, False), "head": (frame, 0),
        "payload": (frame, 0.5), "checkpoint": (checkpoint, tmp_path_factory.mktemp("saved")),
    }  # fmt: skip
    done = run_programs(run, 2, programs, timeout_s=60)
    return {name: results_of(outcome) for name, outcome in done.items()}


@pytest.mark.dist
def test_a_replicated_weight_is_named_at_the_next_check_and_the_checkpoint_goes_on(outcomes):
    for rank, seen in enumerate(outcomes["weight, checked"]):
        assert re.search(
            rf"step 3: other bits than on rank {1 - rank} of .*2\.weight", seen["text"]
        )
        assert seen["step"] == 3
        assert seen["resumed as undisturbed"]
    assert [seen["text"] for seen in outcomes["weight"]] == ["", ""]  # without checks


@pytest.mark.dist
def test_a_residual_changes_gradients_on_all_ranks_alike(outcomes):
    first, second = outcomes["residual"]
    assert all(map(torch.equal, first["gradients"], second["gradients"]))
    assert not torch.equal(first["gradients"][0], first["undisturbed"][0])


@pytest.mark.dist
def test_a_sharded_table_trains_on_with_the_changed_row(outcomes):
    for flipped, whole in zip(outcomes["table"], outcomes["no flip"], strict=True):
        assert flipped[:2] == whole[:2]
        assert flipped[2:] != whole[2:]


@pytest.mark.dist
def test_a_packed_id_names_the_sender_and_a_plain_one_is_another_id(outcomes):
    for packed, plain in zip(outcomes["packed ids"], outcomes["plain ids"], strict=True):
        assert packed["named"] == 1
        assert "checksum" in packed["text"]
        assert plain["named"] is None
    assert [seen["ids"][-1] for seen in outcomes["plain ids"]] == [5 ^ 1, 11 ^ 1]


@pytest.mark.dist
@pytest.mark.parametrize("place", ["head", "payload"])
def test_a_frame_names_its_sender_before_a_row_is_used(outcomes, place):
    assert [seen["named"] for seen in outcomes[place]] == [1, 0]


@pytest.mark.dist
def test_torch_alone_does_not_see_a_checkpoint(outcomes):
    assert [seen["text"] for seen in outcomes["checkpoint"]] == ["", ""]
    assert [seen["differs"] for seen in outcomes["checkpoint"]] == [True, False]
