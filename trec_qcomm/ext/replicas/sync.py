"""ReplicaSync: average replicas of a model's tables, and send only touched rows.

Knows: models, configs, process groups, DMPCollection's hook. Does not know: how rows are averaged.
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trec_qcomm.comm.dense.all_reduce import ring_nbytes
from trec_qcomm.comm.peers import Peers, host_group
from trec_qcomm.config import Config
from trec_qcomm.config.differences import flat_config
from trec_qcomm.core.codec import Codec, Contract
from trec_qcomm.core.counters import Traffic, kind_stats
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.core.stats import KindStats
from trec_qcomm.ext.replicas.average import Algorithm, Average, MatrixState
from trec_qcomm.ext.replicas.banks import WEIGHTS, Bank, TouchedRows
from trec_qcomm.ext.replicas.messages import RowMessages
from trec_qcomm.ext.replicas.residuals import Residuals
from trec_qcomm.ext.replicas.rule import SyncRule
from trec_qcomm.ext.replicas.sync_state import SyncState
from trec_qcomm.ext.replicas.tables import kernels_and_banks
from trec_qcomm.ext.replicas.watch import Watch
from trec_qcomm.ext.replicas.whole import average_whole
from trec_qcomm.integration.agreement import check_equal
from trec_qcomm.integration.compat.private import all_reduce_hook, option_past_hook


class ReplicaSync:
    """Averages over the replicas of a model's tables; `QComm.sync` makes it.

        sync = qcomm.sync(dmp_collection)
        dmp_collection.set_all_reduce_hook(sync.hook)     # TorchRec's 2D parallelism
        ...                                               # dmp_collection.sync() as before

        sync = qcomm.sync(model, replica_group)           # any model with fused tables
        for batch in batches:
            train(batch)
            sync.step()

    The first average sends whole tables, exactly as stock does, so that all replicas are equal
    after it. Later averages send only rows that at least one replica looked up in training since
    the last average. Weights are coded as the config's `sync` says, and the optimizer's state of
    these rows travels, too. Call `resend` after you change tables in other ways. Replicas of a rank
    to which the plan gives no table do nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        pg: dist.ProcessGroup,
        config: Config,
        *,
        is_exact: Callable[[], bool] = lambda: False,
    ) -> None:
        """Watch a model's kernels from now on. Collective.

        Args: pg: the replicas of this rank's shards.  is_exact: function that returns whether to
            send exact values now.
        Raises: ValueError: the config has no `sync`, a group of one rank, an option of
            DMPCollection with which it averages by itself, tables that cannot be averaged, or
            replicas whose configs or tables differ.
        """
        if not isinstance(config.sync, SyncRule):
            raise ValueError(f"{config.source}: sync: missing; add it, such as {{codec: identity}}")
        if pg.size() < 2:
            raise ValueError("sync: the replica group has one rank; leave out sync or add replicas")
        if option := option_past_hook(model):
            raise ValueError(f"sync: {option} of DMPCollection averages past sync; leave it out")
        self.rule, self._config, self._is_exact = config.sync, config, is_exact
        kernels, self._banks = kernels_and_banks(model)
        self._peers = Peers(pg, host_group(pg))
        check_equal(pg, _description(config, self._banks), f"{config.source}: replicas differ")
        tables = dict.fromkeys(name for bank in self._banks for name in bank.tables)
        self.traffic = Traffic("sync", list(tables))
        self._coded, self._exact = self._average(self.rule), self._average(SyncRule())
        self._touched = [TouchedRows(bank) for bank in self._banks]
        self._watch = Watch(kernels, [touched.touch for touched in self._touched])
        if hasattr(model, "set_all_reduce_hook"):
            self._watch.handles.append(model.register_forward_pre_hook(self._check_hook))
        self._state = SyncState(self._peers, self._banks, self._touched, self._residuals())
        self._awaits_optimizer = False
        self.num_calls = 0  # of `average` and of `step`

    def _average(self, rule: SyncRule) -> Average:
        codecs = [_codecs(rule, bank) for bank in self._banks]
        size = self._peers.pg.size()
        algorithm: Algorithm = "direct" if size == 2 else "two_shot"
        if rule.algorithm != "auto":
            algorithm = rule.algorithm
        states = [
            [_state(rule, bank, dim, codec, algorithm) for dim, codec in
             zip(bank.dims, of_bank, strict=True)]
            for bank, of_bank in zip(self._banks, codecs, strict=True)
        ]  # fmt: skip
        messages = RowMessages(
            self._peers, self._banks, codecs, self.traffic, measure=self._config.measure_error
        )
        return Average(self._banks, states, messages, algorithm, size)

    def hook(self, *arguments: Any) -> None:
        """Take the place of DMPCollection's all-reduce: pass it to `set_all_reduce_hook`.

        TorchRec calls it with the weights of all tables, and then with the optimizer's state. The
        first call averages both, every `sync.every` times.

        Args: arguments: the list of tensors; from TorchRec 1.9 on after a process group.
        Raises: ValueError: tensors that are not the tables that this object watches, or
            `sync(include_optimizer_state=False)`.
        """
        given = _memory(arguments[-1])
        if given == _memory(bank.matrices[WEIGHTS] for bank in self._banks):
            if self._awaits_optimizer:
                raise ValueError(
                    "sync: called for weights alone; the optimizer's state is averaged with them, "
                    "so leave out include_optimizer_state=False"
                )
            self._awaits_optimizer = any(len(bank.matrices) > 1 for bank in self._banks)
            self.step()
        elif self._awaits_optimizer and given == _memory(
            matrix for bank in self._banks for matrix in list(bank.matrices.values())[1:]
        ):
            self._awaits_optimizer = False
        else:
            raise ValueError("sync: not the tables it watches; make it after DMPCollection")

    def _check_hook(self, model: nn.Module, _args: Any) -> None:
        """Raise ValueError if a DMPCollection has another hook, which would pass this sync by."""
        hook = inspect.unwrap(all_reduce_hook(model) or self.hook)
        if hook != self.hook:
            raise ValueError(
                f"sync: {getattr(hook, '__qualname__', hook)} is in place of sync.hook; call "
                "set_all_reduce_hook(sync.hook) last, after a pipeline with async_two_dim_sparse_"
                "parallelism_sync is made; put functools.wraps(sync.hook) on a function around it"
            )

    def step(self) -> None:
        """Count a step, and average after every `sync.every` steps. Collective."""
        self.num_calls += 1
        self._state.agree()
        self._state.num_steps += 1
        if self._state.num_steps % self.rule.every == 0:
            self.average()

    def average(self) -> None:
        """Average now. Collective; call it on all replicas after the same step.

        Raises: CorruptFrameError: a wrong message.  LostPeerError: a peer is gone.
            UnencodableError: a value that the codec forbids, naming the table.
        """
        self.num_calls += 1
        if not self._banks:
            return
        self._state.agree()
        raw = self.traffic.raw_nbytes.clone()
        with torch.no_grad():
            if self._state.is_whole:
                self._average_whole()
            else:
                average = self._exact if self._is_exact() else self._coded
                seeds = self._seed("sent"), self._seed("owned")
                average.run(self._touched, call=2 * self._state.num_averages, seeds=seeds)
        self._state.num_averages += 1
        self._state.is_whole = False
        self._watch.note_cleared()
        self.traffic.raw_nbytes.copy_(raw + self._stock_nbytes())

    def _average_whole(self) -> None:
        tensors = [
            table
            for bank in self._banks
            for matrix in bank.resident().values()
            for table in torch.split(matrix, list(bank.num_rows))
        ]
        average_whole(self._peers, tensors)
        for touched in self._touched:
            touched.clear()
        nbytes = self._stock_nbytes()
        self.traffic.add_bytes(torch.arange(len(nbytes)), nbytes, nbytes, 0)

    def _stock_nbytes(self) -> Tensor:
        """Return the bytes that an all-reduce of whole tables sends, by table."""
        numel = dict.fromkeys(self.traffic.tables, 0)
        for bank in self._banks:
            for name, num_rows in zip(bank.tables, bank.num_rows, strict=True):
                numel[name] += num_rows * sum(bank.dims)
        return int64_tensor(ring_nbytes(n, self._peers.pg.size()) for n in numel.values())

    def _seed(self, site: str) -> int:
        key = repr((self._config.seed, self._state.num_averages, dist.get_rank(), site))
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def resend(self) -> None:
        """Let the next average send whole tables, and forget the residuals.

        Call it on all replicas.
        """
        self._state.forget()

    def check(self) -> None:
        """Raise ValueError, naming the tables, if replicas differ. Collective.

        Replicas are equal directly after an average, and at no other time.
        """
        check_equal(self._peers.pg, self._state.digests(), "sync: replicas differ")

    def stop(self) -> None:
        """Stop watching the kernels."""
        self._watch.stop()

    def stats(self) -> KindStats:
        """Return what this rank sent to its replicas since construction or `reset_stats`.

        raw_nbytes are the bytes of an all-reduce of whole tables, distinct_nbytes the bytes of the
        touched rows as float32. Row numbers count as headers.
        """
        return kind_stats([self.traffic])

    def reset_stats(self) -> None:
        """Set all counters to zero."""
        self.traffic.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that this rank needs to go on.

        It is counts, residuals, and rows touched since the last average with their earlier
        values.
        """
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same replica, as all other replicas do.

        The next average sends whole tables if the state is empty or of other tables. It also does
        if the replicas' tables, without their touched rows, do not come from one average.

        Raises: ValueError: no such state, or rows that its tables do not have.
        """
        self._state.load_state_dict(state)
        self._watch.note_cleared()

    def _residuals(self) -> dict[str, Residuals]:
        """Return all residuals by a name that says the bank, the matrix and the place."""
        residuals = {}
        for bank, states in zip(self._banks, self._coded.states, strict=True):
            for name, state in zip(bank.matrices, states, strict=True):
                for site, kept in (("sent", state.sent), ("owned", state.owned)):
                    if kept is not None:
                        residuals[f"{bank.shards[0]} {name} {site}"] = kept
        return residuals


def _codecs(rule: SyncRule, bank: Bank) -> list[Codec]:
    return [rule.codec if name == WEIGHTS else rule.optimizer for name in bank.matrices]


def _state(rule: SyncRule, bank: Bank, dim: int, codec: Codec, algorithm: Algorithm) -> MatrixState:
    is_exact = codec.contract is Contract.EXACT
    if is_exact or not rule.feedback_rows:
        return MatrixState(is_exact)
    num_places = 2 if algorithm == "two_shot" else 1  # that encode
    kept = (Residuals(bank, dim, rule.feedback_rows) for _ in range(num_places))
    return MatrixState(is_exact, *kept)


def _description(config: Config, banks: Sequence[Bank]) -> dict[str, str]:
    """Return what must be equal on all replicas, by keys."""
    shapes = {
        f"table {shard!r} {name}": f"{num_rows} x {matrix.shape[1]}"
        for bank in banks
        for shard, num_rows in zip(bank.shards, bank.num_rows, strict=True)
        for name, matrix in bank.matrices.items()
    }
    return flat_config(config) | shapes


def _memory(tensors: Any) -> tuple[set[int], set[int]]:
    """Return where the memory of tensors begins and ends, without borders between neighbours."""
    ranges = [(t.data_ptr(), t.data_ptr() + 4 * t.numel()) for t in tensors if t.numel()]
    begins, ends = {begin for begin, _ in ranges}, {end for _, end in ranges}
    return begins - ends, ends - begins
