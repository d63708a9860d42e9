"""RowCollective, the base of all exchanges of rows: codecs, noise, numbers of calls, counters.

`start` of a subclass launches the exchange and `wait` of what it returns ends it; the autograd
nodes of both are in autograd.py. On a GPU nothing waits for the kernels that check received frames:
an error that they find is raised by a later exchange, or by `RowCollective.checks`.

Knows: frame plans, calls. Does not know: which codec, TorchRec.
"""

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.comm.peers import Peers, host_group
from trec_qcomm.comm.rows.autograd import Launch, PendingRows, RowExchange
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.exchange_plan import ExchangePlan, PlacedExchange
from trec_qcomm.comm.rows.hooks import (
    MakeTransforms,
    RowObserver,
    RowRefusals,
    RowTolerances,
    RowTransform,
)
from trec_qcomm.comm.rows.layout import Layout
from trec_qcomm.comm.streams import side_stream
from trec_qcomm.core.checks import DeferredChecks
from trec_qcomm.core.codec import Codec, Contract
from trec_qcomm.core.counters import Traffic

_log = logging.getLogger(__name__)
_KIND_BITS = 3
CACHED_BATCH_SHAPES = 32  # enough for the usual batch, an epoch's last one and evaluation


class RowCollective(ABC):
    """Exchange of rows in one process group and one layout.

    Args:
        pg: the ranks.
        layout: columns of every rank, and the dtype of the rows.
        codecs: the config's codecs.
        exact: the codecs of `start(exact=True)`.
        name: text that keys the noise, and is in errors and traces.
        intra: whether all ranks are in one node; statistics keep such traffic apart.
        seed: the config's seed of stochastic rounding; ranks, steps and directions draw different
            noise from it.
        measure_error: whether to record max_abs_err, at the price of decoding what is sent.
        tolerances: rule that sets the tolerances of the forward codecs; None leaves them as the
            config has them.
        alternatives: codecs that `use_codecs` may be given later, on top of `codecs`. They are
            checked, and what they need is made, when the collective is.
        refusals: what is told of rows that a codec refuses, and are then sent exactly; None: they
            are an error.
        make_transforms: function that makes what changes rows before they are encoded, from the
            plan; whoever starts a call sets `context` before. None: nothing does.
    """

    def __init__(
        self,
        pg: dist.ProcessGroup,
        layout: Layout,
        *,
        codecs: DirectionCodecs,
        exact: DirectionCodecs,
        name: str,
        intra: bool = False,
        seed: int = 0,
        measure_error: bool = False,
        tolerances: RowTolerances | None = None,
        alternatives: Sequence[DirectionCodecs] = (),
        refusals: RowRefusals | None = None,
        make_transforms: MakeTransforms | None = None,
    ) -> None:
        self.pg, self.layout, self.name = pg, layout, name
        self.dtype = layout.dtype  # of rows and gradients
        codecs, exact = (c.for_values(self.dtype, name) for c in (codecs, exact))
        alternatives = [c.for_values(self.dtype, name) for c in alternatives]
        self.rank, self.world_size = pg.rank(), pg.size()
        # It keys the noise, because groups of other ranks may use the same name.
        self._global_rank = dist.get_rank()
        self.step = 0  # number of calls with gradients so far; part of the state
        self._num_evaluations = 0  # calls without gradients; they do not change training's noise
        self._num_exchanges = 0  # in both directions; the ranks must agree
        self.intra = intra
        self.observers: tuple[RowObserver, ...] = ()  # see rows, such as a capture of them
        hop = "intra_" if intra else ""
        self.forward_traffic = self._traffic(f"{hop}embedding_forward")
        self.backward_traffic = self._traffic(f"{hop}embedding_backward")
        self.checks = DeferredChecks()  # errors in frames in a GPU's memory
        self._seed, self.measure_error, self.tolerances = seed, measure_error, tolerances
        self.refusals = refusals
        possible = [codecs, *(codecs.updated(change) for change in alternatives)]
        has_sizes = not all(all(self._fixed_sizes(c).values()) for c in possible)
        self.peers = Peers(pg, host_group(pg) if has_sizes else None)
        self._sends_sizes = has_sizes
        for changed in possible[1:]:
            self._make_plan(changed).check_masks(self.name)
        self.has_fixed_size = self._fixed_sizes(codecs)
        self._use({False: codecs, True: exact})
        self.context: object = None  # what transforms need to know of the next call
        self.transforms: Mapping[str, RowTransform] = {}  # by direction
        if make_transforms is not None:
            self.transforms = make_transforms(self._plans[False], name)
        if self.transforms and self.dtype != torch.float32:
            raise ValueError(f"{name}: error_feedback of {self.dtype} rows; allowed: torch.float32")
        self._count_evictions()

    def _traffic(self, kind: str) -> Traffic:
        return Traffic(kind, self.layout.tables(), value_nbytes=self.dtype.itemsize)

    def _fixed_sizes(self, codecs: DirectionCodecs) -> dict[str, bool]:
        """Return for each direction whether both ends know all sizes with such codecs."""
        by_direction = {"forward": codecs.forward, "backward": codecs.backward}
        can_refuse = self.refusals is not None  # then rows may be sent in another way
        return {
            direction: all(
                codec.fixed_size and not (can_refuse and codec.may_refuse)
                for codec in of_direction.values()
            )
            for direction, of_direction in by_direction.items()
        }

    def _use(self, codecs: dict[bool, DirectionCodecs]) -> None:
        """Plan exchanges with other codecs. Args: codecs: those of `exact` or not."""
        self._codecs = codecs
        self._plans = {is_exact: self._make_plan(c) for is_exact, c in codecs.items()}
        for plan in self._plans.values():
            plan.check_masks(self.name)

    @property
    def codecs(self) -> DirectionCodecs:
        """Codecs of the next call."""
        return self._codecs[False]

    def exact_codec(self, table: str, direction: str) -> Codec:
        """Return the codec that sends a table exactly. Args: direction: "forward" or "backward"."""
        exact = self._codecs[True]
        return (exact.forward if direction == "forward" else exact.backward)[table]

    def use_codecs(self, changes: DirectionCodecs, tolerances: RowTolerances | None) -> None:
        """Code some tables in another way from the next call on.

        All ranks must call it between the same two calls. A call that has begun ends, backward
        included, with the codecs that it began with.

        Args:
            changes: codecs of some tables, one of the `alternatives` or of the first `codecs`;
                others keep theirs.
            tolerances: rule that sets the tolerances of the forward codecs from now on.
        Raises: ValueError: rows of a length that a codec does not take, codecs that need a group
            of the host which was not made, or a table that the collective does not have.
        """
        unknown = {*changes.forward, *changes.backward} - set(self.layout.tables())
        if unknown:
            raise ValueError(f"{self.name}: has no table {', '.join(sorted(unknown))}")
        codecs = self.codecs.updated(changes.for_values(self.dtype, self.name))
        if codecs == self.codecs:
            self.tolerances = tolerances
            return
        fixed_sizes = self._fixed_sizes(codecs)
        if not (all(fixed_sizes.values()) or self._sends_sizes):
            raise ValueError(f"{self.name}: codecs of no fixed size are none of its alternatives")
        self._use(self._codecs | {False: codecs})
        self.has_fixed_size, self.tolerances = fixed_sizes, tolerances
        # A rank that does not change is then out of step, and its peers see it.
        self._num_exchanges += 1

    @contextmanager
    def replacing(
        self, forward: Mapping[str, Codec], *, evaluation: int | None = None
    ) -> Iterator[None]:
        """Code the rows of some tables in another way inside the block, to evaluate with.

        All ranks must enter it together. Calls inside leave no trace in numbers of calls and in
        statistics.

        Args:
            forward: {table: codec}; others keep their codecs.
            evaluation: number of the first call inside, which keys its noise; None: the next one.
        """
        saved = dict(self.__dict__)
        if evaluation is not None:
            self._num_evaluations = evaluation
        if forward:
            changes = DirectionCodecs(forward, {}).for_values(self.dtype, self.name)
            codecs = self.codecs.updated(changes)
            self._use(self._codecs | {False: codecs})
        self.transforms = {}
        self.forward_traffic = self._traffic(self.forward_traffic.kind)
        try:
            yield
        finally:
            num_exchanges = self._num_exchanges  # frames of later calls must have later numbers
            self.__dict__ |= saved
            self._num_exchanges = num_exchanges

    @abstractmethod
    def _make_plan(self, codecs: DirectionCodecs) -> ExchangePlan:
        """Return the plan of this kind of exchange."""

    def _owners_to_samples(self, codecs: DirectionCodecs, *, num_summands: int = 1) -> ExchangePlan:
        """Return a plan in which every rank sends its own shards to all and gets gradients back."""
        rank, size = self.rank, self.world_size
        owned, sampled = [rank] * size, range(size)  # the owner of the shards in each frame
        return ExchangePlan(
            forward_sent=self.layout.plan_frames(
                owned, rank, codecs.forward, num_summands=num_summands
            ),
            forward_received=self.layout.plan_frames(
                sampled, rank, codecs.forward, num_summands=num_summands
            ),
            backward_sent=self.layout.plan_frames(sampled, rank, codecs.backward),
            backward_received=self.layout.plan_frames(owned, rank, codecs.backward),
            mirrored=True,
        )

    def _start(
        self, rows: Tensor, exchange: PlacedExchange, gradient_divisor: int, exact: bool
    ) -> PendingRows:
        """Launch the exchange.

        Raises: ValueError: rows of another shape or dtype.  UnencodableError.
        """
        if not rows.numel():  # a rank without tables looks up no rows, as float32
            rows = rows.to(self.dtype)
        if tuple(rows.shape) != exchange.sent_shape or rows.dtype != self.dtype:
            raise ValueError(
                f"{self.name}: rows are {list(rows.shape)} {rows.dtype}, "
                f"expected {list(exchange.sent_shape)} {self.dtype}"
            )
        if torch.is_grad_enabled():
            step = self.step
            self.step += 1
        else:
            self._num_evaluations += 1
            step = -self._num_evaluations
        call = RowExchange(
            self,
            exchange,
            gradient_divisor,
            exact,
            step,
            self._tolerances_of(rows, exchange),
            rows.device,
            self.has_fixed_size,
            context=self._context_of_call(exact),
        )
        if torch.is_grad_enabled() and exchange.backward_sent.reads_masks:
            with side_stream(rows.device):
                masks = (s.new_masks(rows.device) for s in call.placed_frames("forward"))
                call.masks = next(masks), next(masks)
        token: Tensor = Launch.apply(call, rows)  # type: ignore[no-untyped-call]
        return PendingRows(call, token)

    def _context_of_call(self, exact: bool) -> object:
        """Return what transforms need to know of this call; None where they do nothing in it."""
        context, self.context = self.context, None
        if not self.transforms or exact or not torch.is_grad_enabled():
            return None
        for transform in self.transforms.values():
            transform.check_context(context, self.name)
        return context

    def _tolerances_of(self, rows: Tensor, exchange: PlacedExchange) -> Tensor | None:
        """Return the tolerances of this call. Evaluation uses those of the last training step."""
        if self.tolerances is None:
            return None
        step = max(self.step - 1, 0)
        if torch.is_grad_enabled():
            self.tolerances.observe(step, rows.detach().contiguous(), exchange.forward_sent)
        return self.tolerances.tolerances(step)

    def noise_seed(self, step: int, direction: str, again: int = 0) -> int:
        """Return 63 bits that differ for every rank, step, direction and name.

        Args: again: how often the same graph was run backward before.
        """
        words = (self._seed, self.name, self._global_rank, step, direction)
        key = repr((*words, again) if again else words).encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1

    def take_over(self, other: "RowCollective") -> None:
        """Continue where `other`, the same collective with another layout, stopped."""
        self.step, self._num_evaluations = other.step, other._num_evaluations
        self._num_exchanges, self.checks = other._num_exchanges, other.checks
        self.observers = other.observers
        if self.layout == other.layout:
            self.transforms = other.transforms
        if self.layout.tables() == other.layout.tables():
            self.forward_traffic, self.backward_traffic = (
                other.forward_traffic,
                other.backward_traffic,
            )
            self._count_evictions()

    def _count_evictions(self) -> None:
        self.forward_traffic.residuals = self.transforms.get("forward")
        self.backward_traffic.residuals = self.transforms.get("backward")

    def lossy_tables(self) -> list[str]:
        """Return the tables whose forward codec is not EXACT."""
        codecs = self.codecs.forward
        return [table for table, codec in codecs.items() if codec.contract is not Contract.EXACT]

    def warn_of_flushed(self, traffic: Traffic, direction: str, step: int) -> None:
        """Log, once for a table and direction, that values were lost beside much larger ones."""
        when = f"step {step}" if step >= 0 else "evaluation"
        for table in traffic.newly_flushed:
            t = traffic.tables.index(table)
            _log.warning(
                "table %r, %s, %s: rank %d loses %d values beside a far larger one; stats() has "
                "the table's num_flushed (said once)",
                table, direction, when, self._global_rank, int(traffic.num_flushed[t]),
            )  # fmt: skip
        traffic.newly_flushed.clear()

    def next_exchange(self, kind: int) -> int:
        """Return the number of the exchange that begins.

        It is taken before anything can fail. So a rank that drops a batch stays out of step with
        its peers, and they see it. Its lowest bits are the kind, so that a rank that evaluates is
        told from ranks that train.

        Args: kind: bits that say what the exchange is part of, see `RowExchange._kind`.
        """
        self._num_exchanges += 1
        return self._num_exchanges << _KIND_BITS | kind


class PooledCollective(RowCollective):
    """Exchange of the rows of a matrix whose samples are grouped by rank: B_r samples of rank r."""

    def _use(self, codecs: dict[bool, DirectionCodecs]) -> None:
        super()._use(codecs)
        self._placed_exchange = lru_cache(CACHED_BATCH_SHAPES)(self._place_exchange)

    @abstractmethod
    def _place_exchange(self, batch_sizes: tuple[int, ...], exact: bool) -> PlacedExchange:
        """Return the frames placed for a batch of these sizes, one a rank."""

    def start(
        self,
        rows: Tensor,
        batch_sizes: Sequence[int],
        *,
        exact: bool = False,
        gradient_divisor: int = 1,
    ) -> PendingRows:
        """Launch the exchange.

        Args:
            rows: [sum of B_r, D_rank], of the layout's dtype, samples grouped by rank.
            batch_sizes: every rank's B_r, known to all.
            exact: whether to send rows unchanged in both directions.
            gradient_divisor: number that the gradients are divided by when they are received.
        Raises: ValueError: rows of another shape or dtype.  UnencodableError.
        """
        exchange = self._placed_exchange(tuple(batch_sizes), exact)
        return self._start(rows, exchange, gradient_divisor, exact)
