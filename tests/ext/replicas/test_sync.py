"""Replicas of TorchRec's 2D parallelism, averaged by touched rows: 2 groups x 2 ranks on gloo."""

import copy
import functools
import logging
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import load, save
from torch.nn.parallel import DistributedDataParallel

from tests.ext.replicas.two_dim import batch, collection, live_tables, stock_hook, tables, train
from tests.integration.small_model import dense_optimizer
from tests.rank_programs import results_of, run_programs
from trec_qcomm import QComm
from trec_qcomm.ext.replicas.extension import sync_of
from trec_qcomm.ext.replicas.tables import warn_of_ddp

INT8 = {"codec": "rowwise", "bits": 8, "rounding": "stochastic"}


def qcomm_of(**sync) -> QComm:
    return QComm.from_dict({"sync": sync})


def equal_bits(a, b) -> bool:
    return all(torch.equal(x.view(torch.int32), y.view(torch.int32)) for x, y in
               zip(a, b, strict=True))  # fmt: skip


def equals_stock(_folder):
    """Return for 20 steps, of weights and then of optimizer states, whether our hook gives the bits
    that stock's average of whole tensors gives."""
    qcomm = qcomm_of()
    dmp = collection(qcomm)
    sync, stock, equal = qcomm.sync(dmp), stock_hook(dmp), []

    @functools.wraps(sync.hook)
    def hook(*arguments):  # from TorchRec 1.9 on after a process group
        tensors = arguments[-1]
        sync.hook(*arguments)
        equal.append(equal_bits(tensors, expected[: len(tensors)]))
        del expected[: len(tensors)]

    dmp.set_all_reduce_hook(hook)
    optimizer = dense_optimizer(dmp)
    for step in range(20):
        loss = ((dmp(batch(step)) - 1) ** 2).sum() / 8
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        before, expected = tables(dmp), tables(dmp)
        stock(expected)
        equal.append(not equal_bits(before, expected))  # or there was nothing to do
        dmp.sync()
    return equal, qcomm.stats().sync


def coded(_folder):
    """Train with int8 differences; return bytes and whether replicas were told apart."""
    qcomm = qcomm_of(codec=INT8, every=2)
    dmp = collection(qcomm)
    sync = qcomm.sync(dmp)
    dmp.set_all_reduce_hook(sync.hook)
    errors = []
    for step in range(4):
        train(dmp, range(step, step + 1))
        try:
            sync.check()
            errors.append("")
        except ValueError as error:
            errors.append(str(error))
    return errors, tables(dmp), qcomm.stats().sync


def resumed(folder):
    """Return whether a run that stops between two averages goes on with equal bits.

    Tables are restored by hand: TorchRec's checkpoint holds those of one replica.
    """

    def start():
        qcomm = qcomm_of(codec=INT8, optimizer={"codec": "cast", "dtype": "bf16"}, every=2)
        dmp = collection(qcomm)
        return qcomm, dmp, qcomm.sync(dmp)

    qcomm, dmp, sync = start()
    dmp.set_all_reduce_hook(sync.hook)
    train(dmp, range(3))
    save({"trec_qcomm": qcomm}, checkpoint_id=folder)
    model = tables(dmp)
    touched = qcomm.state_dict()["state"]["sync"].popitem()[1]["touched"]
    dense = copy.deepcopy(dense_optimizer(dmp).param_groups[0]["params"])
    straight = train(dmp, range(3, 6))
    again, dmp, sync = start()
    dmp.set_all_reduce_hook(sync.hook)
    for tensor, saved in zip(live_tables(dmp), model, strict=True):
        tensor.copy_(saved)
    for parameter, saved in zip(dense_optimizer(dmp).param_groups[0]["params"], dense, strict=True):
        parameter.data.copy_(saved)
    load({"trec_qcomm": again}, checkpoint_id=folder)
    later = train(dmp, range(3, 6))
    return [equal_bits(a, b) for a, b in zip(straight, later, strict=True)], max(
        map(len, touched.values())
    )


def refused(_folder):
    """Return the errors of wrong calls."""

    def error_of(call, *args) -> str:
        with pytest.raises(ValueError) as error:  # noqa: PT011
            call(*args)
        return str(error.value)

    qcomm = qcomm_of()
    dmp = collection(qcomm)
    errors = [
        error_of(qcomm.sync, dmp, dist.new_subgroups(1)[0]),
        error_of(qcomm.sync, torch.nn.Linear(1, 1)),
        error_of(QComm.from_dict({"ids": {"codec": "packed"}}).sync, dmp),
    ]
    dmp._use_sharded_relay = True
    errors.append(error_of(qcomm.sync, dmp))
    dmp._use_sharded_relay = False
    sync = qcomm.sync(dmp)
    dmp.set_all_reduce_hook(sync.hook)
    errors += [error_of(qcomm.sync, dmp), error_of(sync.hook, tables(dmp))]
    dmp.sync(include_optimizer_state=False)
    return [*errors, error_of(dmp.sync)]


def ddp_of_other_ranks(_folder):
    """Return what is said of a model whose DDP has a part of the replicas, and of one with all."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("trec_qcomm").addHandler(handler)
    pair = dist.new_group([0, 1])
    for group in (None, pair) if dist.get_rank() < 2 else (None,):
        model = nn.Sequential(DistributedDataParallel(nn.Linear(1, 1), process_group=group))
        warn_of_ddp(model, dist.group.WORLD)
        lookups = nn.Module()
        lookups._lookups = list(model)
        warn_of_ddp(lookups, dist.group.WORLD)
    return said


PROGRAMS = {
    "equals_stock": equals_stock,
    "coded": coded,
    "resumed": resumed,
    "refused": refused,
    "ddp_of_other_ranks": ddp_of_other_ranks,
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("checkpoint"))
    return run_programs(run, 4, {name: (name, folder) for name in PROGRAMS}, timeout_s=240)


def run(argument):
    name, folder = argument
    return PROGRAMS[name](folder)


def test_identity_equals_stock_bit_for_bit(outcomes):
    for equal, stats in results_of(outcomes["equals_stock"]):
        assert equal == [True] * 60
        assert 0 < stats.wire_nbytes < stats.raw_nbytes


def test_replicas_are_equal_after_each_average_of_int8_differences(outcomes):
    ranks = results_of(outcomes["coded"])
    for errors, _, stats in ranks:
        assert all("weights" in error for error in errors[0::2])  # between averages they differ
        assert errors[1::2] == [""] * 2
        assert 0 < stats.wire_nbytes < stats.raw_nbytes
    for a, b in ((0, 1), (2, 3)):
        assert equal_bits(ranks[a][1], ranks[b][1])


def test_a_resumed_run_goes_on_with_equal_bits(outcomes):
    for equal, touched_nbytes in results_of(outcomes["resumed"]):
        assert equal == [True] * 3
        assert touched_nbytes > 0


def test_a_ddp_that_leaves_out_replicas_is_told(outcomes):
    for rank, said in enumerate(results_of(outcomes["ddp_of_other_ranks"])):
        assert [text.count("its DDP leaves out ranks 2, 3") for text in said] == [1, 1] * (rank < 2)


def test_training_without_the_sync_of_the_config_is_told(caplog):
    session = qcomm_of().session
    session.check_step(15)
    with torch.no_grad():
        session.check_step(16)
    with pytest.raises(ValueError, match=r"sync: 16 steps without qcomm.sync\(model\)"):
        session.check_step(16)
    sync_of(session).sync = SimpleNamespace(num_calls=1)
    for step in range(20, 3000):
        session.check_step(step)
    assert [r.message.count("1000 steps without an average") for r in caplog.records] == [1]


def test_errors(outcomes):
    for errors in results_of(outcomes["refused"]):
        expected = (
            "one rank", "only a DMPCollection has its own", "sync: missing", "use_sharded_relay",
            "has one already", "not the tables it watches", "include_optimizer_state=False",
        )  # fmt: skip
        assert [text in error for text, error in zip(expected, errors, strict=True)] == [True] * 7
