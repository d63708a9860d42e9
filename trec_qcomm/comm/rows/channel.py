"""Channel: what all calls of one collective of rows share besides its codecs.

A channel has the ranks, the counters, the observers and the numbers of calls. The numbers key the
noise, and reveal ranks that are out of step. On a GPU nothing waits for the kernels that check
received frames: a later exchange, or `Channel.checks`, raises an error that they find.

Knows: ranks, counters, doors. Does not know: plans, codecs, autograd.
"""

import hashlib
import logging

import torch.distributed as dist

from trec_qcomm.comm.peers import Peers
from trec_qcomm.comm.rows.doors import Observer
from trec_qcomm.comm.rows.layout import Layout
from trec_qcomm.core.checks import DeferredChecks
from trec_qcomm.core.counters import Traffic

_log = logging.getLogger(__name__)
_KIND_BITS = 3


class Channel:
    """Ranks, numbers of calls, counters and observers of one collective.

    Args:
        pg: the ranks.
        layout: columns of every rank, and the dtype of the rows.
        name: text that keys the noise and appears in errors and traces.
        intra: whether all ranks are in one node; statistics count such traffic separately.
        seed: the config's seed of stochastic rounding; ranks, steps and directions draw different
            noise from it.
        measure_error: whether to record max_abs_err; this decodes all frames that are sent.
    Attributes:
        step: number of calls with gradients so far; part of the state.
        forward_traffic, backward_traffic: counters.
        checks: errors in frames in a GPU's memory.
        observers: observers of the rows (doors.py).
    """

    def __init__(
        self,
        pg: dist.ProcessGroup,
        layout: Layout,
        *,
        name: str,
        intra: bool = False,
        seed: int = 0,
        measure_error: bool = False,
    ) -> None:
        self.pg, self.layout, self.dtype = pg, layout, layout.dtype
        self.name, self.intra = name, intra
        self.rank, self.world_size, self.peers = pg.rank(), pg.size(), Peers(pg)
        # It keys the noise, because groups of other ranks may use the same name.
        self._global_rank = dist.get_rank()
        self._seed, self.measure_error = seed, measure_error
        self.step = 0
        self._num_evaluations = 0  # calls without gradients; they do not change training's noise
        self._num_exchanges = 0  # in both directions; the ranks must agree
        hop = "intra_" if intra else ""
        self.forward_traffic = self._traffic(f"{hop}embedding_forward")
        self.backward_traffic = self._traffic(f"{hop}embedding_backward")
        self.checks = DeferredChecks()
        self.observers: tuple[Observer, ...] = ()

    def _traffic(self, kind: str) -> Traffic:
        return Traffic(kind, self.layout.tables(), value_nbytes=self.dtype.itemsize)

    def add_observer(self, observer: Observer) -> None:
        """Let an observer see the rows from now on. A second call changes nothing."""
        if observer not in self.observers:
            self.observers += (observer,)

    def remove_observer(self, observer: Observer) -> None:
        """Stop an observer from seeing rows."""
        self.observers = tuple(other for other in self.observers if other is not observer)

    def next_step(self, is_training: bool) -> int:
        """Count a call, and return the number of its training step or evaluation."""
        step = self.step if is_training else self._num_evaluations
        self.step += is_training
        self._num_evaluations += not is_training
        return step

    def noise_seed(self, step: int, is_training: bool, direction: str, again: int = 0) -> int:
        """Return 63 bits that differ for every rank, step or evaluation, direction and name.

        Args: again: how often the same graph was run backward before.
        """
        moment = step if is_training else -1 - step
        words = (self._seed, self.name, self._global_rank, moment, direction)
        key = repr((*words, again) if again else words).encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1

    def next_exchange(self, kind: int) -> int:
        """Return the number of the exchange that begins.

        The number is taken before anything can fail. So a rank that drops a batch stays out of step
        with its peers, and they notice. The lowest bits are the kind, so that a rank that evaluates
        is told from ranks that train.

        Args: kind: bits that say what the exchange is part of (`RowExchange`).
        """
        self._num_exchanges += 1
        return self._num_exchanges << _KIND_BITS | kind

    def continue_from(self, other: "Channel") -> None:
        """Continue where a channel of the same name stopped."""
        self.step, self._num_evaluations = other.step, other._num_evaluations
        self._num_exchanges, self.checks = other._num_exchanges, other.checks
        self.observers = other.observers
        if self.layout.tables() == other.layout.tables():
            self.forward_traffic = other.forward_traffic
            self.backward_traffic = other.backward_traffic

    def warn_of_flushed(self, traffic: Traffic, direction: str, moment: str) -> None:
        """Log, once for a table and direction, that values were lost beside much larger ones.

        Args: moment: step or evaluation, in words.
        """
        for table in traffic.newly_flushed:
            t = traffic.tables.index(table)
            _log.warning(
                "table %r, %s, %s: rank %d loses %d values beside a far larger one; stats() has "
                "the table's num_flushed (said once)",
                table, direction, moment, self._global_rank, int(traffic.num_flushed[t]),
            )  # fmt: skip
        traffic.newly_flushed.clear()
