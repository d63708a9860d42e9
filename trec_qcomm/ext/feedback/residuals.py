"""RowResiduals: error feedback of rows. A codec's error is added when the id is sent again.

    sent = Q(row + residual),  residual <- row + residual - sent

Only the rank that encodes a row knows the residual, and keeps it. The key is the row's segment
(table, columns and peer) and id. Memory is bounded: id i has slot i mod N of the N slots of its
segment. Another id that comes to a slot takes it, and the residual there is dropped and counted. If
several ids of one exchange have one slot, the last one gets it.

A row without an id (a bag of no id, or of several ids) is sent without a residual. So is a row with
NaN or inf; its residual waits. On a GPU only `state_dict` makes the host wait.

Knows: placed frames whose rows lie one after the other. Does not know: where ids come from.
Source: Yang et al. 2020 (error compensation); residuals by id are ours.
Shapes: S segments, R rows in all; n rows of one group, D values each; M slots of one dim.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trec_qcomm.comm.frames.plan import CodecGroup, FramePlan, PlacedFrames
from trec_qcomm.comm.rows.doors import CallTransform, TransformedRows
from trec_qcomm.comm.rows.exchange_plan import ExchangePlan, PlacedExchange
from trec_qcomm.comm.streams import use_here
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.segments import exclusive_cumsum, int64_tensor
from trec_qcomm.core.transfer import upload

NO_ID = -1  # in place of the id of a row that has none


class RowFeedbackTransform:
    """RowTransform (comm.rows.doors): error feedback of one collective, in both directions.

    Args:
        plan: frames of the collective.
        num_slots: {direction: {table: number of slots of each of its segments}}; other tables have
            no slots.
    Raises: ValueError: rows of 16 bits.
    Attributes:
        residuals: {direction: residuals}, for directions that have some.
        ids: {direction: [R] int64 in the memory of the rows}, the ids of the rows that the next
            call sends, in the order of their segments; NO_ID where a row has no id. The caller sets
            them before each call; None: there are no ids.
    """

    def __init__(self, plan: ExchangePlan, num_slots: Mapping[str, Mapping[str, int]]) -> None:
        sent = {"forward": plan.forward_sent, "backward": plan.backward_sent}
        if (nbytes := plan.forward_sent.value_nbytes) != torch.float32.itemsize:
            raise ValueError(f"error_feedback: rows of {8 * nbytes} bits; allowed: torch.float32")
        self.residuals = {
            direction: RowResiduals(sent[direction], slots)
            for direction, slots in num_slots.items()
            if any(slots.values())
        }
        self.ids: Mapping[str, Tensor] | None = None

    def begin(self, name: str, exchange: PlacedExchange, device: torch.device) -> "FedCall":
        """Return what adds residuals in the call that begins. Raises ValueError without ids."""
        ids, self.ids = self.ids, None
        if ids is None:
            raise ValueError(
                f"{name}: error_feedback needs the ids of the batch, and batches with batch "
                "sizes of their own for every feature are sent as they are"
            )
        return FedCall(self.residuals, ids)

    def state_dict(self) -> dict[str, dict[str, dict[str, Tensor]]]:
        """Return {direction: {table: its residuals}}, as RowResiduals.state_dict gives them."""
        return {direction: kept.state_dict() for direction, kept in self.residuals.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Mapping[str, Tensor]]]) -> None:
        """Continue from a `state_dict`, as RowResiduals.load_state_dict does."""
        for direction, kept in self.residuals.items():
            kept.load_state_dict(state.get(direction, {}))


class FedCall(CallTransform):
    """Error feedback of the rows of one call. Args: residuals, ids: by direction."""

    def __init__(self, residuals: Mapping[str, "RowResiduals"], ids: Mapping[str, Tensor]) -> None:
        self._residuals, self._ids = residuals, ids

    def rows(
        self, direction: str, values: Tensor, sent: PlacedFrames, traffic: Traffic
    ) -> "FedRows | None":
        """Return the rows with their residuals."""
        kept = self._residuals.get(direction)
        if kept is None:
            return None
        use_here(ids := self._ids[direction])  # made by the input dist
        return kept.added(values, sent, ids, traffic)


class RowResiduals:
    """Residuals that one rank keeps of the rows that it sends in one direction.

    Args:
        plan: frames that are sent; codecs may change, segments may not.
        num_slots: {table: number of slots of each of its segments}; other tables have no slots.
    """

    def __init__(self, plan: FramePlan, num_slots: Mapping[str, int]) -> None:
        self._slots = int64_tensor(num_slots.get(table, 0) for table in plan.tables)
        self._dims, self._plan = plan.dims, plan
        self._base = torch.zeros_like(plan.dims)
        self._banks: dict[int, _Bank] = {}
        for dim in sorted(set(plan.dims.tolist())):
            of_dim = plan.dims == dim
            ends = exclusive_cumsum(self._slots[of_dim])
            self._base[of_dim] = ends[:-1]
            self._banks[dim] = _Bank(int(ends[-1]), dim)

    def added(
        self, values: Tensor, placed: PlacedFrames, ids: Tensor, traffic: Traffic
    ) -> "FedRows":
        """Return the rows with their residuals, to be encoded.

        Args:
            values: [..] float32, contiguous, the rows of all segments one after the other.
            placed: the rows' places.
            ids: [R] int64 in the memory of the rows; NO_ID where a row has no id.
            traffic: counters of dropped residuals.
        """
        fed = FedRows(values.clone(), torch.empty_like(values))
        first_row = exclusive_cumsum(placed.num_rows)
        for group in placed.groups:
            if int(self._slots[group.members].sum()) and group.segments.num_rows.sum():
                fed.parts.append(self._part(fed.values, group, first_row, ids, traffic))
        return fed

    def _part(
        self, values: Tensor, group: CodecGroup, first_row: Tensor, ids: Tensor, traffic: Traffic
    ) -> "_Part":
        device, members, offsets = values.device, group.members, group.segments.offsets
        segment = torch.repeat_interleave(
            torch.arange(len(members)), group.segments.num_rows, output_size=int(offsets[-1])
        )
        within = torch.arange(len(segment)) - offsets[segment]
        vectors = [
            self._plan.table[members][segment],
            self._slots[members][segment],
            self._base[members][segment],
        ]
        places = None
        if not group.has_all:
            row = first_row[members][segment] + within
            start = group.segments.start[segment] + within * group.segments.dim
            vectors += [row, start]
        table, slots, base, *more = upload(device, *vectors)
        if more:
            ids = ids[more[0]]
            places = more[1][:, None] + torch.arange(group.segments.dim, device=device)
        bank = self._banks[group.segments.dim]
        bank.move_to(device)
        part = bank.claim(ids, slots, base, places)
        part.add_to(values)
        traffic.num_evicted = traffic.num_evicted.to(device)
        traffic.num_evicted.index_add_(0, table, part.evicts.to(torch.int64))
        return part

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return all slots on CPU, for each table and each of its segments, by index.

        The slots of a segment are "ids", [N] int64, and "residuals", [N, D] float32.
        """
        state: dict[str, dict[str, Tensor]] = {}
        for table, number, bank, begin, end in self._ranges():
            of_table = state.setdefault(table, {})
            of_table[f"ids {number}"] = bank.ids[begin:end].cpu().clone()
            of_table[f"residuals {number}"] = bank.residuals[begin:end].cpu().clone()
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue from `state`.

        Segments that `state` lacks, or has with another number or length of slots, begin without
        residuals.
        """
        for table, number, bank, begin, end in self._ranges():
            ids = state.get(table, {}).get(f"ids {number}")
            residuals = state.get(table, {}).get(f"residuals {number}")
            bank.ids[begin:end], bank.residuals[begin:end] = NO_ID, 0
            if ids is None or residuals is None:
                continue
            if len(ids) == end - begin and residuals.shape == (end - begin, bank.dim):
                bank.ids[begin:end] = ids.to(bank.ids.device)
                bank.residuals[begin:end] = residuals.to(bank.ids.device)

    def _ranges(self) -> Iterator[tuple[str, int, "_Bank", int, int]]:
        """Yield the table of each segment with slots, its number among the table's, and its slots:
        their bank, the first and the end."""
        numbers: dict[str, int] = {}
        lists = (vector.tolist() for vector in (self._dims, self._base, self._slots))
        for table, dim, begin, slots in zip(self._plan.tables, *lists, strict=True):
            number = numbers[table] = numbers.get(table, -1) + 1
            if slots:
                yield table, number, self._banks[dim], begin, begin + slots


@dataclass(eq=False)
class FedRows(TransformedRows):
    """Rows of one exchange with their residuals. Args: parts: rows of each group with slots."""

    parts: list["_Part"] = field(default_factory=list)

    @property
    def tensors(self) -> list[Tensor]:
        parts = [t for part in self.parts for t in (part.ids, part.slot, part.residuals)]
        places = [part.places for part in self.parts if part.places is not None]
        return [*super().tensors, *parts, *places]

    def note(self) -> None:
        """Keep what was not sent. Call this when `decoded` holds what the peers will decode."""
        assert self.decoded is not None
        for part in self.parts:
            part.note(self.values, self.decoded)


class _Bank:
    """Slots of all segments whose rows have one length. The last slot is no segment's.

    Attributes: ids: [M + 1] int64, the id in each slot, or NO_ID.  residuals: [M + 1, D] float32.
    """

    def __init__(self, num_slots: int, dim: int) -> None:
        self.dim, self.spare = dim, num_slots
        self.ids = torch.full((num_slots + 1,), NO_ID, dtype=torch.int64)
        self.residuals = torch.zeros(num_slots + 1, dim)
        # The number of the last row that wanted each slot. Rows are numbered from call to call, so
        # that nothing needs to be cleared.
        self._claims = torch.zeros(num_slots + 1, dtype=torch.int64)
        self._num_claims = 0

    def move_to(self, device: torch.device) -> None:
        """Lie in that memory from now on."""
        if self.ids.device != device:
            self.ids, self.residuals = self.ids.to(device), self.residuals.to(device)
            self._claims = self._claims.to(device)

    def claim(self, ids: Tensor, slots: Tensor, base: Tensor, places: Tensor | None) -> "_Part":
        """Find the slots of n rows.

        Args: ids, slots, base: [n] int64, id, number of slots and first slot of each row's segment.
            places: [n, D] int64, the places of the rows' values; None: they are all values.
        """
        has_slot = (ids >= 0) & (slots > 0)
        slot = torch.where(has_slot, base + ids % slots.clamp(min=1), self.spare)
        claims = torch.arange(1, len(ids) + 1, device=ids.device) + self._num_claims
        self._num_claims += len(ids)
        self._claims.scatter_reduce_(0, slot, claims, "amax")
        wins = has_slot & (self._claims[slot] == claims)
        before = self.ids[slot]
        evicts = has_slot & (~wins | ((before != NO_ID) & (before != ids)))
        residuals = self.residuals[slot]
        residuals = torch.where((wins & (before == ids))[:, None], residuals, 0)
        slot = torch.where(wins, slot, self.spare)
        return _Part(self, ids, slot, residuals, evicts, places)


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows of one group in one exchange.

    Args:
        bank: the slots.
        ids: [n] int64, the rows' ids.
        places: [n, D] int64, the places of the rows' values; None: they are all values.
        slot: [n] int64, where each row's residual is kept.
        residuals: [n, D] float32, what is added to the rows.
        evicts: [n] bool, whether a residual is dropped because of the row.
    """

    bank: _Bank
    ids: Tensor
    slot: Tensor
    residuals: Tensor
    evicts: Tensor
    places: Tensor | None

    def add_to(self, values: Tensor) -> None:
        """Add the residuals to the rows."""
        if self.places is None:
            values.view(-1, self.bank.dim).add_(self.residuals)
        else:
            values.view(-1).index_add_(0, self.places.view(-1), self.residuals.view(-1))

    def note(self, values: Tensor, decoded: Tensor) -> None:
        """Keep what was not sent of `values`."""
        if self.places is None:
            lost = (values - decoded).view(-1, self.bank.dim)
        else:
            lost = values.view(-1)[self.places] - decoded.view(-1)[self.places]
        is_finite = lost.isfinite().all(1, keepdim=True)
        self.bank.ids.index_copy_(0, self.slot, self.ids)
        self.bank.residuals.index_copy_(0, self.slot, torch.where(is_finite, lost, self.residuals))
