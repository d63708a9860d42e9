"""SyncExtension: what a config's `sync` adds to a session, before and after the sync is made.

Knows: sessions, process groups. Does not know: averages.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn

from trec_qcomm.ext.replicas.sync import ReplicaSync
from trec_qcomm.ext.replicas.tables import warn_of_ddp
from trec_qcomm.integration.checkpoint import by_rank_key, by_short_key, check_names, self_rank_key
from trec_qcomm.integration.extension import Extension
from trec_qcomm.integration.session import Session
from trec_qcomm.qcomm import QComm

MOST_STEPS_WITHOUT = 16  # steps before a sync that was never made is an error
MOST_WITHOUT_AVERAGE = 1000  # steps without an average, after which that is said
_log = logging.getLogger(__name__)


class SyncExtension(Extension):
    """Sync of one session, once it is made, and a check that the training calls it.

    Args: session: the session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.sync: ReplicaSync | None = None
        self._loaded: dict[str, Any] = {}
        self._synced_step: int | None = 0  # None: that of the next step
        self._num_syncs = 0  # calls of the sync, as they were at _synced_step
        session.state["sync"] = self

    def start(self, model: nn.Module, pg: dist.ProcessGroup | None) -> ReplicaSync:
        """Begin to average the replicas of a model's tables. Collective."""
        session = self._session
        if self.sync is not None:
            raise ValueError("sync: this QComm has one already; one QComm serves one model")
        if pg is None:
            mesh = getattr(model, "device_mesh", None)
            if mesh is None:
                raise ValueError("sync: replica_group: missing; only a DMPCollection has its own")
            pg = mesh.get_group("replicate")
        else:
            warn_of_ddp(model, pg)
        if any(parameter.device.type == "cpu" for parameter in model.parameters()):
            session.warm_up_once()
        self.sync = ReplicaSync(model, pg, session.config, is_exact=lambda: session.exact)
        self.traffic = self.sync.traffic
        if self._loaded:
            self._load()
        return self.sync

    def _load(self) -> None:
        if self.sync is not None:
            of_ranks = by_rank_key(by_short_key(self._loaded))
            if of_ranks and self_rank_key() not in of_ranks:
                _log.warning(
                    "sync: the state that was loaded is of another number of ranks, so the next "
                    "average is of whole tables"
                )
            self.sync.load_state_dict(of_ranks.get(self_rank_key(), {}))

    def check_step(self, step: int) -> None:
        if self._synced_step is None:
            self._synced_step = step
        num_steps = step - self._synced_step
        if self.sync is None:
            if num_steps >= MOST_STEPS_WITHOUT:
                raise ValueError(
                    f"{self._session.config.source}: sync: {num_steps} steps without "
                    "qcomm.sync(model); call it once the model is sharded, or leave out sync"
                )
        elif self.sync.num_calls != self._num_syncs:
            self._num_syncs, self._synced_step = self.sync.num_calls, step
        elif num_steps == MOST_WITHOUT_AVERAGE:
            _log.warning(
                "sync: %d steps without an average; pass sync.hook to set_all_reduce_hook, or call "
                "sync.step() after each step",
                MOST_WITHOUT_AVERAGE,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state that each rank keeps for the next average; {} before there is a sync."""
        return {} if self.sync is None else {self_rank_key(): self.sync.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, or begin anew for {}."""
        check_names(state, "state: sync")
        self._synced_step = None
        self._loaded = dict(state)
        self._load()


def sync_of(session: Session) -> SyncExtension:
    """Return a session's SyncExtension. Raises ValueError if the config has no `sync`."""
    for extension in session.extensions.values():
        if isinstance(extension, SyncExtension):
            return extension
    raise ValueError(f"{session.config.source}: sync: missing; add it, such as {{codec: identity}}")


def sync(
    qcomm: QComm, model: nn.Module, replica_group: dist.ProcessGroup | None = None
) -> ReplicaSync:
    """Average the replicas of the model's tables as the config's `sync` says. Collective.

        sync = qcomm.sync(dmp_collection)      # 2D parallelism
        dmp_collection.set_all_reduce_hook(sync.hook)

    Call this on all ranks once the model is sharded, and once for a QComm. For other models with
    fused tables, call `sync.step()` after each step.

    Args:
        model: the sharded model.
        replica_group: ranks that hold the same shards as this rank; None: the group of a
            DMPCollection.
    Raises: ValueError: a config without `sync`, no group, a group of one rank, tables that
        cannot be averaged, or replicas whose configs or tables differ.
    """
    return sync_of(qcomm.session).start(model, replica_group)
