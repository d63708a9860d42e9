"""A sync that goes on from a checkpoint, and batches whose backward comes after an average."""

import logging
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.ext.replicas.test_tables import INT4, fused
from trec_qcomm import Config, QComm
from trec_qcomm.ext.replicas.extension import sync_of
from trec_qcomm.ext.replicas.sync import ReplicaSync
from trec_qcomm.lab.ranks.ranks import PlayedRanks

NUM_ROWS = 6


class Replica:
    """A kernel of one table with its sync, which trains on rows of a rank."""

    def __init__(self, num_rows: int = NUM_ROWS, config: Config = INT4.config) -> None:
        self.kernel = fused(num_rows)
        for matrix in self.matrices:
            matrix.copy_(torch.arange(matrix.numel()).view_as(matrix) / (1 + dist.get_rank()))
        self.sync = ReplicaSync(self.kernel, dist.group.WORLD, config)

    @property
    def matrices(self) -> list[Tensor]:
        [state] = self.kernel.get_optimizer_state()
        return [self.kernel.split_embedding_weights()[0].data, state["sum"].data]

    def loss(self, step: int) -> Tensor:
        ids = torch.tensor([0, 1 + (2 * dist.get_rank() + step) % 5])
        return (self.kernel(ids, torch.tensor([0, 2])) * torch.arange(8)).sum() * (step + 1)

    def train(self, step: int) -> None:
        self.loss(step).backward()

    def copies(self) -> list[Tensor]:
        return [matrix.clone() for matrix in self.matrices]

    def restore(self, matrices: list[Tensor]) -> None:
        for matrix, saved in zip(self.matrices, matrices, strict=True):
            matrix.copy_(saved)


def saved_between_averages() -> tuple[Replica, dict, list[Tensor]]:
    """Train two averages and one step more; return the replica, its state and its tables."""
    replica = Replica()
    for step in range(2):
        replica.train(step)
        replica.sync.step()
    replica.train(2)
    return replica, replica.sync.state_dict(), replica.copies()


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_replicas_with_their_own_tables_go_on_as_if_nothing_had_been(caplog):
    def program():
        replica, state, tables = saved_between_averages()
        again = Replica()
        again.restore(tables)
        again.sync.load_state_dict(state)
        for one in (replica, again):
            one.train(3)
            one.sync.step()
        again.sync.check()
        return replica.copies(), again.copies()

    for straight, resumed in PlayedRanks(2).run(program):
        assert equal(straight, resumed)
    assert not caplog.records


def test_replicas_with_the_tables_of_one_begin_with_a_whole_average(caplog):
    def program():
        _, state, tables = saved_between_averages()
        every = [torch.zeros_like(t) for t in tables]
        for mine, zeros in zip(tables, every, strict=True):
            zeros.copy_(mine if dist.get_rank() == 0 else 0)
            dist.all_reduce(zeros)
        again = Replica()
        again.restore(every)
        again.sync.load_state_dict(state)
        again.sync.step()
        again.sync.check()
        ends = again.copies()
        again.train(3)
        again.sync.step()
        again.sync.check()
        return equal(ends, every), again.sync._state.num_averages

    with caplog.at_level(logging.WARNING):
        assert PlayedRanks(2).run(program) == [(True, 4)] * 2
    assert [r.message.count("do not go on from one average") for r in caplog.records] == [1, 1]


def test_state_of_other_tables_or_of_some_ranks_only_is_taken_for_none(caplog):
    def program():
        _, state, _ = saved_between_averages()
        other, alone = Replica(NUM_ROWS + 1), Replica()
        other.sync.load_state_dict(state)
        alone.sync.load_state_dict({} if dist.get_rank() else state)
        for replica in (other, alone):
            replica.train(3)
            replica.sync.step()
            replica.sync.check()
        return other.sync._state.num_steps, alone.sync._state.num_steps

    assert PlayedRanks(2).run(program) == [(3, 3)] * 2
    said = [record.message for record in caplog.records]
    assert sum("of other tables or another plan" in message for message in said) == 2
    assert sum("do not go on from one average" in message for message in said) == 2
    assert len(said) == 4


def test_wrong_state_changes_nothing():
    def program():
        replica, state, _ = saved_between_averages()
        [shard] = state["touched"]
        for wrong in (
            state | {"touched": {shard: state["touched"][shard][:-1]}},
            state | {"counts": torch.zeros(3, dtype=torch.int64)},
            state | {"counts": [1, 2, 3, 4]},
            state | {"touched": [1]},
            {"touched": {}},
            5,
        ):
            with pytest.raises(ValueError, match="state: sync: "):
                replica.sync.load_state_dict(wrong)
        return replica.sync.state_dict()["touched"] == state["touched"]

    assert PlayedRanks(2).run(program) == [True] * 2


def test_a_second_backward_after_an_average_counts_for_the_next():
    def program():
        replica = Replica()
        replica.sync.step()
        loss = replica.loss(0)
        loss.backward(retain_graph=True)
        replica.sync.step()
        loss.backward()
        replica.sync.step()
        replica.sync.check()

    PlayedRanks(2).run(program)


def test_a_lookup_before_a_load_counts_for_the_average_after():
    every = QComm.from_dict({"sync": {"codec": {"codec": "rowwise", "bits": 4}, "every": 2}})

    def program():
        replica = Replica(config=every.config)
        for step in range(2):
            replica.train(step)
            replica.sync.step()
        state, tables, loss = replica.sync.state_dict(), replica.copies(), replica.loss(2)
        replica.restore(tables)
        replica.sync.load_state_dict(state)
        replica.sync.step()
        loss.backward()
        replica.sync.step()
        replica.sync.check()

    PlayedRanks(2).run(program)


def test_state_of_another_number_of_ranks_is_told(caplog):
    def program():
        extension, loaded = sync_of(QComm.from_dict({"sync": {}}).session), []
        extension.sync = SimpleNamespace(load_state_dict=loaded.append)
        for state in ({}, {"rank0of3": {"counts": 0}}):
            extension.load_state_dict(state)
        return loaded

    assert PlayedRanks(2).run(program) == [[{}, {}]] * 2
    assert [r.message.count("of another number of ranks") for r in caplog.records] == [1, 1]
