"""SyncState: a replica's state in checkpoints, and a check that replicas go on from one average.

Replicas may differ only in the rows that they touched since their last average. Averages rely on
this: a row that a replica did not touch counts as the average left it. A load can break this, for
example if one replica's tables are loaded into all replicas.

Knows: banks, touched rows, residuals, process groups. Does not know: averages, models, configs.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from struct import Struct
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.comm.peers import Peers
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.ext.replicas.banks import Bank, TouchedRows
from trec_qcomm.ext.replicas.residuals import Residuals
from trec_qcomm.ext.replicas.whole import digests
from trec_qcomm.integration.checkpoint import check_names

_COUNTS = Struct("<4q")
_log = logging.getLogger(__name__)


class SyncState:
    """Counts, touched rows and residuals of one replica.

    Attributes:
        num_steps, num_averages: number of steps and of averages so far.
        is_whole: whether the next average sends whole tables.
    """

    def __init__(
        self,
        peers: Peers,
        banks: Sequence[Bank],
        touched: Sequence[TouchedRows],
        residuals: Mapping[str, Residuals],
    ) -> None:
        """Begin with nothing. Args: residuals: residuals of the averages, by distinct names."""
        self._peers, self._banks, self._touched = peers, banks, touched
        self._residuals = residuals
        self.num_steps = self.num_averages = 0
        self.is_whole = True
        self._is_loaded = False

    def forget(self) -> None:
        """Let the next average send whole tables, and forget the residuals."""
        self.is_whole = True
        for kept in self._residuals.values():
            kept.load_state_dict({})

    def digests(self, *, before: bool = False) -> dict[str, str]:
        """Return a digest of the bits of each table's matrices, by shard and matrix.

        Args: before: whether touched rows count with their earlier values.
        """
        by_name = {}
        for bank, touched in zip(self._banks, self._touched, strict=True):
            rows, bases = touched.collect()
            for (name, matrix), base in zip(bank.resident().items(), bases, strict=True):
                with _rows_as(matrix, rows, base) if before else nullcontext():
                    of_tables = digests(torch.split(matrix, list(bank.num_rows)))
                for shard, digest in zip(bank.shards, of_tables, strict=True):
                    by_name[f"{shard} {name}"] = digest
        return by_name

    def state_dict(self) -> dict[str, Any]:
        """Return counts, residuals, and rows touched since the last average with earlier values."""
        counts = [self.num_steps, self.num_averages, int(self.is_whole), self._tables_key()]
        state: dict[str, Any] = {
            "counts": int64_tensor(counts),
            "touched": {
                bank.shards[0]: _rows_to_bytes(*touched.collect())
                for bank, touched in zip(self._banks, self._touched, strict=True)
            },
        }
        residuals = {key: kept.state_dict() for key, kept in self._residuals.items()}
        return state | ({"residuals": residuals} if residuals else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, if all other replicas do, too; `agree` decides in the next step.

        A state of other tables, for example after a change of the plan, counts as no state.

        Raises: ValueError: no such state, or rows that its tables do not have.
        """
        counts = _counts_of(state) if state else []
        is_ours = bool(counts) and counts[3] == self._tables_key()
        if counts and not is_ours:
            _log.warning(
                "sync: the state that was loaded is of other tables or another plan, so the next "
                "average is of whole tables"
            )
        touched_rows = state.get("touched", {})
        restored = [
            _rows_from_bytes(touched_rows.get(bank.shards[0]), bank) if is_ours else None
            for bank in self._banks
        ]
        for touched, rows in zip(self._touched, restored, strict=True):
            touched.clear()
            if rows is not None:
                touched.restore(*rows)
        self.num_steps, self.num_averages = counts[:2] if counts else (0, 0)
        self.is_whole = not is_ours or bool(counts[2])
        of_residuals = state.get("residuals", {}) if is_ours else {}
        for key, kept in self._residuals.items():
            kept.load_state_dict(of_residuals.get(key, {}))
        self._is_loaded = True

    def agree(self) -> None:
        """Compare replicas after a load. Collective then; does nothing at any other time.

        If replicas do not go on from one average, the log says so, and the next average sends whole
        tables.

        Raises: CorruptFrameError: a wrong message.  LostPeerError: a peer is gone.
        """
        if not self._is_loaded:
            return
        self._is_loaded = False
        tables = 0 if self.is_whole else _key(self.digests(before=True))
        ours = (self.num_steps, self.num_averages, int(self.is_whole), tables)
        gathered = self._peers.gather_bytes(
            _COUNTS.pack(*ours), "comparison of replicas", max_nbytes=_COUNTS.size
        )
        theirs = [
            _unpacked(data, rank) for rank, data in zip(self._peers.ranks, gathered, strict=True)
        ]
        if len(set(theirs)) == 1:
            return
        self.num_steps = max(counts[0] for counts in theirs)
        self.num_averages = max(counts[1] for counts in theirs)
        self.forget()
        _log.warning(
            "sync: the replicas that were loaded do not go on from one average (tables of one "
            "replica loaded into all, or state of other tables), so the next one is of whole tables"
        )

    def _tables_key(self) -> int:
        """Return a number that tells banks of other tables, rows or matrices apart."""
        shapes = [
            [list(bank.shards), list(bank.num_rows), list(bank.matrices), bank.dims]
            for bank in self._banks
        ]
        return _key(shapes)


@contextmanager
def _rows_as(matrix: Tensor, rows: Tensor, values: Tensor) -> Iterator[None]:
    """Let some rows of a matrix have other values for a while."""
    now = matrix.index_select(0, rows)
    try:
        matrix[rows] = values
        yield
    finally:
        matrix[rows] = now


def _key(value: object) -> int:
    """Return a number of 63 bits that tells values of JSON apart."""
    digest = hashlib.blake2b(json.dumps(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _counts_of(state: object) -> list[int]:
    """Return the numbers of a state. Raises ValueError: it is none."""
    check_names(state, "state: sync", ("counts", "touched", "residuals"), needed="counts")
    assert isinstance(state, Mapping)
    for name in ("touched", "residuals"):
        check_names(state.get(name, {}), f"state: sync: {name}")
    counts = state["counts"]
    if not isinstance(counts, Tensor) or counts.dtype != torch.int64 or counts.shape != (4,):
        raise ValueError(f"state: sync: counts: expected 4 int64 numbers, got {counts!r:.80}")
    return counts.tolist()


def _unpacked(data: bytes, rank: int) -> tuple[int, ...]:
    if len(data) != _COUNTS.size:
        raise CorruptFrameError(
            f"comparison of replicas: expected {_COUNTS.size} bytes, got {len(data)}", rank=rank
        )
    return _COUNTS.unpack(data)


def _rows_to_bytes(rows: Tensor, values: Sequence[Tensor]) -> bytes:
    """Return row numbers and then values. Args: rows: [n] int64.  values: [n, D] of each matrix."""
    parts = (rows, *values)
    return b"".join(part.cpu().contiguous().numpy().tobytes() for part in parts)


def _rows_from_bytes(data: object, bank: Bank) -> tuple[Tensor, list[Tensor]]:
    """Return what `_rows_to_bytes` was given. Raises ValueError: bytes of another bank."""
    row_nbytes = 8 + 4 * sum(bank.dims)
    if not isinstance(data, bytes) or len(data) % row_nbytes:
        raise ValueError(f"state: sync: touched: not of table {bank.tables[0]!r} as it is now")
    n = len(data) // row_nbytes
    memory = torch.frombuffer(bytearray(data), dtype=torch.uint8) if n else torch.empty(0).byte()
    sizes = [8 * n, *(4 * n * dim for dim in bank.dims)]
    rows, *values = (part.clone() for part in torch.split(memory, sizes))
    device, rows = bank.first.device, rows.view(torch.int64)
    if n and not 0 <= int(rows.min()) <= int(rows.max()) < int(bank.first[-1]):
        raise ValueError(f"state: sync: touched: rows that table {bank.tables[0]!r} does not have")
    pairs = zip(values, bank.dims, strict=True)
    return rows.to(device), [v.view(torch.float32).view(n, d).to(device) for v, d in pairs]
