"""RowCollective, the base of all exchanges of rows, whose codecs and plans may change.

`start` of a subclass launches the exchange. It returns pending rows, and their `wait` ends the
exchange. The autograd nodes of both are in autograd.py.

Knows: frame plans, calls. Does not know: which codec, TorchRec.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.comm.peers import Peers, host_group
from trec_qcomm.comm.rows.autograd import Launch, PendingRows, RowExchange
from trec_qcomm.comm.rows.channel import Channel
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.doors import Call, RowTransform, Tolerances
from trec_qcomm.comm.rows.exchange_plan import ExchangePlan, PlacedExchange
from trec_qcomm.comm.rows.layout import Layout
from trec_qcomm.core.codec import Codec

T = TypeVar("T")
Uncoded = Callable[[], Any]  # sends the rows as they are, without frames
_MOST_KEPT = 32  # enough for the usual batch, an epoch's last one and evaluation


@dataclass(frozen=True, eq=False)
class Coding:
    """Codecs that a collective uses, and the plan that follows from them.

    Args:
        codecs: codecs of the rows.
        plan: plan of the exchanges with these codecs.
        has_fixed_size: whether both ends know all sizes, by direction.
        transforms: transforms that show forward's rows to codecs of gradients.
    """

    codecs: DirectionCodecs
    plan: ExchangePlan
    has_fixed_size: Mapping[str, bool]
    transforms: tuple[RowTransform, ...] = ()
    _kept: dict[Hashable, object] = field(default_factory=dict)

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return make(), or its earlier result for the key; the latest few results are kept."""
        value = self._kept.pop(key) if key in self._kept else make()
        self._kept[key] = value  # as the latest
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return value  # type: ignore[return-value]


class RowCollective(Channel):
    """Exchange of rows in one process group and one layout.

    Args:
        pg, layout, options: arguments of Channel.
        codecs: the config's codecs.
        exact: the codecs of `start(exact=True)`.
    Attributes:
        tolerances, transform: doors (doors.py), which are None at first.
    """

    def __init__(
        self,
        pg: dist.ProcessGroup,
        layout: Layout,
        *,
        codecs: DirectionCodecs,
        exact: DirectionCodecs,
        **options: Any,
    ) -> None:
        super().__init__(pg, layout, **options)
        self.tolerances: Tolerances | None = None
        self.transform: RowTransform | None = None
        self._exact = self._coding_of(exact.for_values(self.dtype, self.name))
        self._coding = self._coding_of(codecs.for_values(self.dtype, self.name))
        self._prepare(self._coding)

    def _coding_of(self, codecs: DirectionCodecs) -> Coding:
        plan = self._make_plan(codecs)
        by_direction = {"forward": codecs.forward, "backward": codecs.backward}
        fixed = {d: all(c.fixed_size for c in by_t.values()) for d, by_t in by_direction.items()}
        return Coding(codecs, plan, fixed, self._transforms_of(plan))

    def _transforms_of(self, plan: ExchangePlan) -> tuple[RowTransform, ...]:
        """Return what the codecs of gradients need; one is enough for codecs of one class."""
        made: dict[type[Codec], RowTransform] = {}
        for codec, _, members in plan.backward_sent.groups:
            if type(codec) not in made:
                try:
                    transform: RowTransform | None = codec.row_transform(plan)
                except ValueError as error:
                    table = plan.backward_sent.tables[int(members[0])]
                    raise ValueError(f"{self.name}: table {table!r}: {error}") from error
                if transform is not None:
                    made[type(codec)] = transform
        return tuple(made.values())

    def _prepare(self, coding: Coding) -> None:
        """Make the group that a GPU's sizes go through, where they vary. Collective."""
        if not all(coding.has_fixed_size.values()):
            self.peers = Peers(self.pg, host_group(self.pg))

    @property
    def codecs(self) -> DirectionCodecs:
        """Codecs of the next call."""
        return self._coding.codecs

    @property
    def plan(self) -> ExchangePlan:
        """Plan of the next call's exchange."""
        return self._coding.plan

    def _coding_for(self, exact: bool) -> Coding:
        return self._exact if exact else self._coding

    def _changed(self, changes: DirectionCodecs) -> DirectionCodecs:
        """Return the codecs with those of some tables changed."""
        unknown = {*changes.forward, *changes.backward} - set(self.layout.tables())
        if unknown:
            raise ValueError(f"{self.name}: has no table {', '.join(sorted(unknown))}")
        return self.codecs.updated(changes.for_values(self.dtype, self.name))

    def prepare_codecs(self, changes: DirectionCodecs) -> None:
        """Prepare for codecs that `use_codecs` may be given later. Collective.

        Args: changes: codecs of some tables.
        Raises: ValueError: the same as `use_codecs`.
        """
        self._prepare(self._coding_of(self._changed(changes)))

    def use_codecs(self, changes: DirectionCodecs) -> None:
        """Change the codecs of some tables from the next call on. Collective.

        All ranks must call this between the same two exchanges. An exchange that has begun ends,
        backward included, with the codecs that it began with.

        Args: changes: codecs of some tables; other tables keep their codecs.
        Raises: ValueError: rows of a length that a codec does not take, or a table that the
            collective does not have.
        """
        codecs = self._changed(changes)
        if codecs != self.codecs:
            coding = self._coding_of(codecs)
            self._prepare(coding)
            self._coding = coding
            # A rank that does not change is then out of step, and its peers see it.
            self._num_exchanges += 1

    @contextmanager
    def replacing(
        self, forward: Mapping[str, Codec], *, evaluation: int | None = None
    ) -> Iterator[None]:
        """Use other codecs for the rows of some tables inside the block, for an evaluation.

        All ranks must enter it together. Calls inside leave no trace in numbers of calls and in
        statistics.

        Args:
            forward: {table: codec of fixed size}; other tables keep their codecs.
            evaluation: number of the first call inside, which keys its noise; None: the next one.
        """
        before = self._coding, self.transform, self.forward_traffic, self._num_evaluations
        if evaluation is not None:
            self._num_evaluations = evaluation
        if forward:
            coding = self._coding_of(self._changed(DirectionCodecs(forward, {})))
            # Sizes are told inside as outside, whatever has become of them.
            self._coding = replace(coding, has_fixed_size=self._coding.has_fixed_size)
        self.transform = None
        self.forward_traffic = self._traffic(self.forward_traffic.kind)
        try:
            yield
        finally:
            self._coding, self.transform, self.forward_traffic, self._num_evaluations = before

    def _make_plan(self, codecs: DirectionCodecs) -> ExchangePlan:
        """Return the plan of this kind of exchange."""
        return self._owners_to_samples(codecs)

    def _owners_to_samples(
        self, codecs: DirectionCodecs, *, repeats: int = 1, num_summands: int = 1
    ) -> ExchangePlan:
        """Return a plan in which every rank sends its own shards to all and gets gradients back."""
        plan = partial(self.layout.plan_frames, rank=self.rank, repeats=repeats)
        # The owner of the shards in each frame, at both ends.
        owned, sampled = [self.rank] * self.world_size, range(self.world_size)
        return ExchangePlan(
            forward_sent=plan(owned, codecs=codecs.forward, num_summands=num_summands),
            forward_received=plan(sampled, codecs=codecs.forward, num_summands=num_summands),
            backward_sent=plan(sampled, codecs=codecs.backward),
            backward_received=plan(owned, codecs=codecs.backward),
        )

    def _start(
        self,
        rows: Tensor,
        exchange: PlacedExchange,
        gradient_divisor: int,
        exact: bool,
        *,
        uncoded: Uncoded | None = None,
        then: Callable[[Tensor], Tensor] | None = None,
    ) -> Any:
        """Launch the exchange. The arguments are those of `start`, and `then` of PendingRows.

        Raises: ValueError: rows of another shape or dtype.  UnencodableError: a value that a codec
            refuses.
        """
        if not rows.numel():  # a rank without tables looks up no rows, as float32
            rows = rows.to(self.dtype)
        if tuple(rows.shape) != exchange.sent_shape or rows.dtype != self.dtype:
            raise ValueError(
                f"{self.name}: rows are {list(rows.shape)} {rows.dtype}, "
                f"expected {list(exchange.sent_shape)} {self.dtype}"
            )
        is_training = torch.is_grad_enabled()
        step = self.next_step(is_training)
        if uncoded is not None and self._is_uncoded(exact):
            counters = self.forward_traffic, self.backward_traffic
            exchange.count_uncoded(*counters[: 1 + is_training])
            return uncoded()
        seed = self.noise_seed(step, is_training, "forward")
        tolerances = self._tolerances_of(rows, exchange)
        transforms = self._coding_for(exact).transforms if is_training else ()
        if self.transform is not None and is_training and not exact:
            transforms = (*transforms, self.transform)
        begun = [transform.begin(self.name, exchange, rows.device) for transform in transforms]
        call = RowExchange(
            self,
            exchange,
            Call(self.name, "forward", step, is_training, seed, tolerances),
            exact,
            gradient_divisor,
            rows.device,
            self._coding.has_fixed_size,
            [transform for transform in begun if transform is not None],
        )
        token: Tensor = Launch.apply(call, rows)  # type: ignore[no-untyped-call]
        return PendingRows(call, token, then)

    def _is_uncoded(self, exact: bool) -> bool:
        """Return whether a call codes no rows and nobody looks at them."""
        is_plain = exact or (self.codecs == self._exact.codecs and self.transform is None)
        return is_plain and not self.observers and not self.measure_error

    def _tolerances_of(self, rows: Tensor, exchange: PlacedExchange) -> Tensor | None:
        """Return the tolerances of this call. Evaluation uses those of the last training step."""
        if self.tolerances is None:
            return None
        step = max(self.step - 1, 0)
        if torch.is_grad_enabled():
            self.tolerances.observe(step, rows.detach().contiguous(), exchange.forward_sent)
        return self.tolerances.tolerances(step)

    def take_over(self, other: "RowCollective") -> None:
        """Continue where `other`, the same collective with another layout, stopped."""
        self.continue_from(other)
        if self.layout == other.layout:
            self.transform = other.transform


class PooledCollective(RowCollective, ABC):
    """Exchange of the rows of a matrix whose samples are grouped by rank, B_r samples of rank r."""

    @abstractmethod
    def _place_exchange(self, plan: ExchangePlan, batch_sizes: tuple[int, ...]) -> PlacedExchange:
        """Return the frames placed for a batch of these sizes, one a rank."""

    def start(
        self,
        rows: Tensor,
        batch_sizes: Sequence[int],
        *,
        exact: bool = False,
        gradient_divisor: int = 1,
        uncoded: Uncoded | None = None,
    ) -> Any:
        """Launch the exchange.

        Args:
            rows: [sum of B_r, D_rank], of the layout's dtype, samples grouped by rank.
            batch_sizes: every rank's B_r, known to all.
            exact: whether to send rows unchanged in both directions.
            gradient_divisor: number that the gradients are divided by when they are received.
            uncoded: function that sends the rows and later their gradients without frames, by the
                backend's own collective. It is called where no codec changes them.
        Returns: PendingRows, or what `uncoded` returns.
        Raises: ValueError: rows of another shape or dtype.  UnencodableError: a value that a codec
            refuses.
        """
        coding, sizes = self._coding_for(exact), tuple(batch_sizes)
        exchange = coding.kept(sizes, lambda: self._place_exchange(coding.plan, sizes))
        return self._start(rows, exchange, gradient_divisor, exact, uncoded=uncoded)
