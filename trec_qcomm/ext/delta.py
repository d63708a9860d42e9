"""DeltaExport: write the rows of a model's tables that changed since the last export.

It watches the kernels as replicas do (ext.replicas.watch): a row counts as changed once a training
batch looked it up. It sends nothing: each rank writes the rows of its own shards.

Knows: kernels, codecs, frames, files. Does not know: process groups but for its rank.
Shapes: R rows of a bank; n changed rows; D values a row.
"""

import json
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from trec_qcomm.codecs import ErrorBounded, Identity
from trec_qcomm.core.codec import Codec, check_dim, encode_alone
from trec_qcomm.core.segments import Segments, int64_tensor
from trec_qcomm.ext.replicas.banks import WEIGHTS, Bank
from trec_qcomm.ext.replicas.tables import kernels_and_banks
from trec_qcomm.ext.replicas.watch import Watch
from trec_qcomm.integration.checkpoint import by_short_key, check_names, rank_key
from trec_qcomm.ops.batch.packed_ids import Bags
from trec_qcomm.ops.numpy_decoders import DECODED
from trec_qcomm.wire import frame, id_messages
from trec_qcomm.wire.row_files import MAGIC, VERSION

_VALUES = 1 << 20  # of a frame
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of one shard that are to be written. rows: [n] int64, numbers in the bank."""

    header: dict[str, Any]
    matrix: Tensor
    rows: Tensor
    shift: int  # from a number in the bank to one in the shard


class DeltaExport:
    """Exports of the rows of a sharded model's tables. Make one on each rank, and use it alike.

        export = trec_qcomm.DeltaExport(model, Rowwise(8))
        qcomm.state["delta"] = export            # or among a checkpoint's objects
        ...
        path = export.write("deltas")            # between two steps

    The first export has all rows. It needs no QComm: any model of TorchRec with fused tables has
    exports. Tables that DDP keeps (DATA_PARALLEL) are not among them, and belong to the dense part.

    Attributes: number: number of the next export.
    """

    def __init__(self, model: nn.Module, codec: Codec | None = None) -> None:
        """Watch a model's kernels from now on.

        Args: codec: codec of the rows; None: Identity, which is exact.
        Raises: ValueError: a codec that numpy does not decode, or tables that cannot be watched.
        """
        self.codec = Identity() if codec is None else codec
        is_bitpacked = not isinstance(codec, ErrorBounded) or codec.encoder == "bitpack"
        if self.codec.wire_id not in DECODED or not is_bitpacked:
            raise ValueError(
                f"delta: {codec!r}: numpy has no decoder for it; allowed: identity, cast, rowwise, "
                "float6, float8, and error_bounded with the encoder bitpack"
            )
        kernels, self._banks = kernels_and_banks(model, "delta")
        for bank in self._banks:
            check_dim(self.codec, bank.dims[0], f"delta: table {bank.tables[0]!r}")
        paths = {shard.partition(" ")[0] for bank in self._banks for shard in bank.shards}
        names = {name for bank in self._banks for name in bank.tables}
        if len(paths) != len(names):
            raise ValueError(f"delta: two tables have one name: {', '.join(sorted(paths))}")
        self._changed = [bank.first.new_zeros(sum(bank.num_rows)).bool() for bank in self._banks]
        touch = [partial(changed.index_fill_, 0, value=True) for changed in self._changed]
        self._watch = Watch(kernels, touch)
        self.number, self._is_whole = 0, True
        started = dist.is_initialized()
        self._place = (dist.get_rank(), dist.get_world_size()) if started else (0, 1)

    def write(self, folder: str | Path) -> Path:
        """Write a file of the rows that changed since the last export, and return its path.

        The file has its name only once all of it is on the disk. Until then the rows count as
        changed, so a later export has them. Waits for a GPU.

        Raises: OSError: the file cannot be written.  UnencodableError: the same as Codec.encode.
        """
        rank, num_ranks = self._place
        path = Path(folder) / f"delta-{self.number:08}-{rank:05}-of-{num_ranks:05}.rows"
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        try:
            with open(unfinished, "wb") as file:
                for block in self._blocks():
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        _sync_folder(path.parent)
        self._begin_next()
        return path

    def send(self, callback: Callable[[bytes], object]) -> None:
        """Hand the bytes of the file that `write` would write to a function, block after block.

        If the function raises, the rows count as changed still.
        """
        for block in self._blocks():
            callback(block)
        self._begin_next()

    def resend(self) -> None:
        """Let the next export have all rows, for example after tables were loaded."""
        self._is_whole = True

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank needs so that its next export has all rows that changed."""
        bits = {
            bank.shards[0]: torch.from_numpy(np.packbits(changed.cpu().numpy()))
            for bank, changed in zip(self._banks, self._changed, strict=True)
        }
        counts = int64_tensor([self.number, int(self._is_whole)])
        return {rank_key(*self._place): {"counts": counts, "changed": bits}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. State of other ranks or tables: the next export is whole.

        Raises: ValueError: no such state.
        """
        check_names(state, "state: delta")
        ours = by_short_key(state).get(rank_key(*self._place).partition(" ")[0])
        self._begin_next()
        self._is_whole, self.number = True, 0
        for kept in by_short_key(state).values():
            check_names(kept, "state: delta", ("counts", "changed"), needed="counts")
            self.number = max(self.number, int(kept["counts"][0]))
        sizes = {
            bank.shards[0]: (len(changed) + 7) // 8
            for bank, changed in zip(self._banks, self._changed, strict=True)
        }
        if ours is None or {name: len(bits) for name, bits in ours["changed"].items()} != sizes:
            if state:
                _log.warning("delta: the state is of other ranks or tables; next, all rows go")
            return
        self._is_whole = bool(ours["counts"][1])
        for bank, changed in zip(self._banks, self._changed, strict=True):
            bits = ours["changed"][bank.shards[0]].numpy()
            changed.copy_(torch.from_numpy(np.unpackbits(bits, count=len(changed)).astype(bool)))

    def _begin_next(self) -> None:
        self._watch.note_cleared()
        for changed in self._changed:
            changed.zero_()
        self.number, self._is_whole = self.number + 1, False

    def _blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the file (FORMAT.md, "Files of rows")."""
        shards = [
            rows
            for bank, changed in zip(self._banks, self._changed, strict=True)
            for rows in self._rows_of(bank, changed)
        ]
        header = {"number": self.number, "whole": self._is_whole}
        header |= dict(zip(("rank", "ranks"), self._place, strict=True))
        text = json.dumps(header | {"tables": [shard.header for shard in shards]}).encode()
        text = text.ljust((len(text) + 7) // 8 * 8)
        begin = b"".join([MAGIC, VERSION.to_bytes(4, "little"), len(text).to_bytes(8, "little")])
        yield begin + text
        key, number = zlib.crc32(begin + text), 0
        for shard in shards:
            for rows in torch.split(shard.rows, _rows_a_frame(shard.matrix.shape[1])):
                values = shard.matrix.index_select(0, rows)
                yield from self._part(rows.cpu() - shard.shift, values, key, number)
                number += 1

    def _rows_of(self, bank: Bank, changed: Tensor) -> Iterator[_Rows]:
        matrix, ends = bank.resident()[WEIGHTS], bank.first.tolist()
        rows = (changed | self._is_whole).nonzero().view(-1)
        per_table = torch.split(rows, bank.counts(rows).tolist())
        for table, (first_row, first_column) in enumerate(bank.offsets):
            of_table, size = per_table[table], _rows_a_frame(matrix.shape[1])
            header = {
                "name": bank.tables[table],
                "first_row": first_row,
                "first_column": first_column,
                "dim": matrix.shape[1],
                "counts": [len(part) for part in torch.split(of_table, size) if len(part)],
            }
            yield _Rows(header, matrix, of_table, ends[table])

    def _part(self, rows: Tensor, values: Tensor, key: int, number: int) -> Iterator[bytes]:
        """Yield a message of ids and a frame of rows; nothing for no rows."""
        if not len(rows):
            return
        ones = torch.ones(len(rows), dtype=torch.int32)
        bags = Bags(rows, ones, int64_tensor([len(rows)]))
        ids = id_messages.pack(bags, [1], even_bags=len(rows)).buffer.numpy().tobytes()
        yield ids
        segments = Segments.packed([len(rows)], values.shape[1])
        encoded = encode_alone(self.codec, values, segments, seed=self.number)
        at, frame_nbytes = frame.lay_out(encoded.nbytes, [1])
        buffer = torch.zeros(frame_nbytes[0], dtype=torch.uint8)
        buffer[int(at[0]) :] = encoded.payload[: int(encoded.nbytes[0])].cpu()
        frame.seal(
            buffer,
            frame_nbytes,
            [1],
            layouts=[zlib.crc32(ids, key)],
            call=number,
            codecs=int64_tensor([self.codec.wire_id]),
            num_rows=segments.num_rows,
            nbytes=encoded.nbytes,
        )
        yield buffer.numpy().tobytes()


def _rows_a_frame(dim: int) -> int:
    return max(1, _VALUES // dim)


def _sync_folder(folder: Path) -> None:
    """Wait until the folder's list of files is on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
