"""Messages of rows: the numbers of the rows that a replica sends, and their coded values.

A replica sends each peer two messages. The first has the numbers of rows, packed as ids are
(FORMAT.md, "Messages of ids"; a table is a segment with one bag). The second is a frame with a
segment for each matrix of each table. The first message's size travels before it.

Knows: banks, ids, frames, peers. Does not know: averages, TorchRec.
Shapes: B banks with T tables in all; P messages sent, N received; n rows of some bank.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.comm.exchange import start_exchange
from trec_qcomm.comm.frames.coding import encode_frames
from trec_qcomm.comm.frames.plan import FramePlan, plan_frames
from trec_qcomm.comm.peers import Peers
from trec_qcomm.comm.rows.layout import packed
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import exclusive_cumsum, int64_tensor
from trec_qcomm.ext.replicas.banks import Bank
from trec_qcomm.ops.batch.packed_ids import Bags
from trec_qcomm.ops.id_messages.cpu import HEADER_NBYTES
from trec_qcomm.wire.id_messages import PackedMessages, pack, unpack

_CALL_BITS = 16
_SIZE_BITS = 47  # of a word that holds a message's size and, above it, a call's number


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of every bank, with values.

    Args:
        rows: for each bank [n] int64, ascending.
        values: for each bank and each of its matrices [n, D] float32.
    """

    rows: Sequence[Tensor]
    values: Sequence[Sequence[Tensor]]


class RowMessages:
    """Sender and receiver of rows between the replicas of some banks."""

    def __init__(
        self,
        peers: Peers,
        banks: Sequence[Bank],
        codecs: Sequence[Sequence[Codec]],
        traffic: Traffic,
        *,
        measure: bool = False,
    ) -> None:
        """Prepare without communication.

        Args:
            peers: the replicas, with a `host` group for sizes.
            banks: banks that are equal on all replicas but for their values.
            codecs: codec of each matrix of each bank.
            traffic: counters by table.
            measure: whether to record the largest errors; slow.
        Raises: ValueError: rows of a length that their codec does not take.
        """
        self._peers, self._banks, self._traffic, self._measure = peers, banks, traffic, measure
        self._codecs = codecs
        self._names = [name for bank in banks for name in bank.tables]
        counts = int64_tensor(len(bank.tables) for bank in banks)
        self._first_tables: list[int] = exclusive_cumsum(counts)[:-1].tolist()
        columns = [  # of each segment of a frame: its table's number, name, dim and codec
            (bank_first + t, name, dim, codec)
            for bank, bank_first, of_bank in zip(banks, self._first_tables, codecs, strict=True)
            for dim, codec in zip(bank.dims, of_bank, strict=True)
            for t, name in enumerate(bank.tables)
        ]
        self._table = int64_tensor(table for table, *_ in columns)
        # plan_frames tells codecs by name, and those of weights and optimizer states differ.
        names = [f"{name} ({number})" for number, (_, name, _, _) in enumerate(columns)]
        tables = {name: number for number, name in enumerate(traffic.tables)}
        self._segments = [(s, dim) for s, (_, _, dim, _) in zip(names, columns, strict=True)]
        self._codec_of = {s: codec for s, (*_, codec) in zip(names, columns, strict=True)}
        self._number_of = {s: tables[name] for s, (_, name, *_) in zip(names, columns, strict=True)}
        self._limits = int64_tensor(n for bank in banks for n in bank.num_rows)
        self._plans: dict[tuple[int, int], FramePlan] = {}
        self._plan(1, peers.pg.size())

    def _plan(self, num_frames: int, fan_out: int) -> FramePlan:
        key = num_frames, fan_out
        if key not in self._plans:
            self._plans[key] = plan_frames(
                [self._segments] * num_frames,
                layouts=[zlib.crc32(repr(self._segments).encode())] * num_frames,
                codecs=self._codec_of,
                table_numbers=self._number_of,
                rank=self._peers.pg.rank(),
                fan_out=fan_out,
            )
        return self._plans[key]

    def exchange(
        self, parts: Sequence[Rows], *, call: int, seed: int, decodes: bool
    ) -> tuple[list[Rows], list[Rows]]:
        """Send rows to all replicas and receive theirs. Collective; waits for a GPU.

        Args:
            parts: rows for each of N replicas, or a single part for all.
            call: number of the exchange, the same on all replicas.
            seed: seed of stochastic rounding.
            decodes: whether to return the second result.
        Returns: the decoded rows of each replica, in order; and `parts` as they will be decoded, or
            nothing.
        Raises: CorruptFrameError: a wrong message.  LostPeerError: a peer is gone.
            UnencodableError: naming the table.
        """
        size = self._peers.pg.size()
        plan = self._plan(len(parts), size if len(parts) == 1 else 1)
        counts = torch.cat(
            [b.counts(r) for p in parts for b, r in zip(self._banks, p.rows, strict=True)]
        )
        counts = counts.cpu().view(len(parts), -1)
        all_counts, rows = self._exchange_ids(parts, counts, call)
        placed = plan.place(*packed(plan, counts[:, self._table].reshape(-1)))
        values = torch.cat([v.reshape(-1) for p in parts for of_bank in p.values for v in of_bank])
        decoded = torch.empty_like(values) if decodes else None
        sealed = encode_frames(
            values, placed, call=call, seed=seed, traffic=self._traffic, measure=self._measure,
            decoded=decoded,
        )  # fmt: skip
        their_plan = self._plan(size, 1)
        theirs = their_plan.place(*packed(their_plan, all_counts[:, self._table].reshape(-1)))
        out = values.new_empty(int((theirs.num_rows * their_plan.dims).sum()))
        pending = start_exchange(
            self._peers, sealed, theirs, fixed_size=theirs.fixed_size, traffic=self._traffic,
            name="sync of replicas",
        )  # fmt: skip
        pending.wait(out)
        ours = [] if decoded is None else self._split(decoded, [p.rows for p in parts])
        return self._split(out, rows), ours

    def _split(self, values: Tensor, rows: Sequence[Sequence[Tensor]]) -> list[Rows]:
        """Return views of the values of each message."""
        parts, at = [], 0
        for of_message in rows:
            by_bank = []
            for bank, of_bank in zip(self._banks, of_message, strict=True):
                views = []
                for dim in bank.dims:
                    views.append(values[at : at + len(of_bank) * dim].view(-1, dim))
                    at += len(of_bank) * dim
                by_bank.append(views)
            parts.append(Rows(of_message, by_bank))
        return parts

    def _exchange_ids(
        self, parts: Sequence[Rows], counts: Tensor, call: int
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """Send row numbers; return those of all replicas.

        Args: counts: [P, T] int64 on CPU, rows of each table.
        Returns: [N, T] int64 on CPU, rows of each table; and each replica's rows of each bank.
        """
        pairs = [(b, r) for p in parts for b, r in zip(self._banks, p.rows, strict=True)]
        ids = torch.cat([r - b.first[:-1].repeat_interleave(b.counts(r)) for b, r in pairs])
        num_tables = len(self._names)
        bags = Bags(
            ids, counts.reshape(-1).to(ids.device), torch.ones(counts.numel(), dtype=torch.int64)
        )
        sent = pack(bags, [num_tables] * len(parts), even_bags=1)
        size = self._peers.pg.size()
        buffer = self._exchange_bytes(sent, call)
        received = unpack(buffer, self._peers.ranks, self._names, [1] * size)
        lengths = received.lengths.cpu().view(size, num_tables)
        self._check(received.ids, lengths)
        rows: list[list[Tensor]] = []
        at = 0
        for of_replica in lengths:
            by_bank = []
            for bank, begin in zip(self._banks, self._first_tables, strict=True):
                of_tables = of_replica[begin : begin + len(bank.tables)].to(ids.device)
                n = int(of_tables.sum())
                first = bank.first[:-1].repeat_interleave(of_tables, output_size=n)
                by_bank.append(received.ids[at : at + n] + first)
                at += n
            rows.append(by_bank)
        return lengths, rows

    def _check(self, ids: Tensor, lengths: Tensor) -> None:
        """Raise CorruptFrameError at rows that a table does not have, or not in ascending order."""
        n = len(ids)
        counts = lengths.reshape(-1).to(ids.device)
        limit = self._limits.repeat(len(lengths)).to(ids.device)
        bad = (ids < 0) | (ids >= limit.repeat_interleave(counts, output_size=n))
        segment = torch.arange(len(counts), device=ids.device)
        segment = segment.repeat_interleave(counts, output_size=n)
        bad[1:] |= (ids[1:] <= ids[:-1]) & (segment[1:] == segment[:-1])
        if bool(bad.any()):
            rank, table = divmod(int(segment[bad][0]), lengths.shape[1])
            raise CorruptFrameError(
                "row numbers that the table does not have, or that do not ascend",
                rank=self._peers.ranks[rank],
                table=self._names[table],
            )

    def _exchange_bytes(self, sent: PackedMessages, call: int) -> Tensor:
        """Return the messages of all replicas, one behind the other."""
        peers, size, begin = self._peers, self._peers.pg.size(), perf_counter()
        repeats = size // len(sent.nbytes)
        nbytes = sent.nbytes * repeats
        word = call % 2**_CALL_BITS
        words = int64_tensor(nbytes) | word << _SIZE_BITS
        received = torch.empty_like(words)
        try:
            dist.all_to_all_single(received, words, group=peers.host)
            sizes = self._sizes(received, word)
            buffer = sent.buffer.new_empty(sum(sizes))
            dist.all_to_all_single(
                buffer, sent.buffer.repeat(repeats), sizes, nbytes, group=peers.pg
            )
        except CorruptFrameError:
            raise
        except RuntimeError as error:
            raise peers.lost(error, "sync of replicas: ids", since=begin) from error
        self._traffic.wire_s += perf_counter() - begin
        own_nbytes = nbytes[peers.pg.rank()]
        self._traffic.header_nbytes += sum(nbytes) - own_nbytes + 8 * (size - 1)
        return buffer

    def _sizes(self, words: Tensor, call: int) -> list[int]:
        """Return the sizes that were announced, checked."""
        largest = HEADER_NBYTES + 64 * len(self._names) + 16 * int(self._limits.sum()) + 64
        sizes = words & (2**_SIZE_BITS - 1)
        in_step = words >> _SIZE_BITS == call
        bad = ~in_step | (sizes > largest) | (sizes % 8 != 0)
        if bool(bad.any()):
            p = int(bad.nonzero()[0])
            reason = f"{int(sizes[p])} bytes of row numbers announced, at most {largest}"
            if not bool(in_step[p]):
                reason = "of another call: the replicas are out of step"
            raise CorruptFrameError(reason, rank=self._peers.ranks[p])
        announced: list[int] = sizes.tolist()
        return announced
