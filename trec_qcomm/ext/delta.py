"""DeltaExport: write the rows of a model's tables that changed since the last export.

It watches the kernels as replicas do (ext.replicas.watch): a row counts as changed once a training
batch looked it up. It sends nothing: each rank writes the rows of its own shards.

Knows: kernels, codecs, frames, files. Does not know: process groups, except its own rank.
Shapes: R rows of a bank; n changed rows; D values a row.
"""

import json
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from struct import pack
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


class DeltaExport:
    """Exports of the rows of a sharded model's tables. Each rank has one and calls it alike.

        export = trec_qcomm.DeltaExport(model, Rowwise(8))
        qcomm.state["delta"] = export            # or among a checkpoint's objects
        ...
        path = export.write("deltas")            # between two steps

    The first export has all rows. No QComm is needed: any model of TorchRec with fused tables will
    do. Tables that DDP keeps (DATA_PARALLEL) are not exported: they belong to the dense part.

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
        if hasattr(model, "set_all_reduce_hook"):
            raise ValueError(
                "delta: a DMPCollection averages rows that other replicas looked up, and no export "
                "sees that; save its state_dict"
            )
        _check_names(model)
        kernels, self._banks = kernels_and_banks(model, "delta")
        for bank in self._banks:
            check_dim(self.codec, bank.dims[0], f"delta: table {bank.tables[0]!r}")
        self._changed = [
            bank.first.new_zeros(sum(bank.num_rows), dtype=torch.bool) for bank in self._banks
        ]
        touch = [partial(changed.index_fill_, 0, value=True) for changed in self._changed]
        self._watch = Watch(kernels, touch)
        self.number, self._is_whole, self._goes_on = 0, True, False
        self._place = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

    def write(self, folder: str | Path) -> Path:
        """Write a file of the rows that changed since the last export, and return its path.

        The file has its name only once all of it is on the disk. Until then the rows count as
        changed, so a later export has them. Waits for a GPU.

        Raises: OSError: the file cannot be written.  FileExistsError: the folder has files of
            another run.  UnencodableError: the same as Codec.encode.
        """
        rank, num_ranks = self._place
        path = Path(folder) / f"delta-{self.number:08}-{rank:05}-of-{num_ranks:05}.rows"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self._goes_on:
            self._check_folder(path)
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
        self._begin_next()
        self._goes_on = True
        _sync_folder(path.parent)
        return path

    def _check_folder(self, path: Path) -> None:
        """Raise FileExistsError if a server would read files of another run after this file."""
        _, number, rank, _, num_ranks = path.stem.split("-")
        for file in sorted(path.parent.glob("delta-*.rows")):
            its = file.stem.split("-")
            if its[1] >= number and (its[2] == rank or its[4] != num_ranks):
                raise FileExistsError(f"{file}: of another run; remove it, or take another folder")

    def send(self, callback: Callable[[bytes], object]) -> None:
        """Hand the bytes of the file that `write` would write to a function, block after block.

        If the function raises, the rows still count as changed.
        """
        for block in self._blocks():
            callback(block)
        self._begin_next()

    def resend(self) -> None:
        """Let the next export have all rows, for example after tables were loaded."""
        self._is_whole = True

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank needs so that its next export has all rows that changed."""
        changed = torch.cat([torch.zeros(0, dtype=torch.bool), *(c.cpu() for c in self._changed)])
        counts = int64_tensor([self.number, int(self._is_whole), self._tables_key()])
        bits = torch.from_numpy(np.packbits(changed.numpy()))
        return {rank_key(*self._place): {"counts": counts, "changed": bits}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. State of other ranks or tables makes the next one whole.

        Raises: ValueError: no such state.
        """
        check_names(state, "state: delta")
        by_rank = by_short_key(state)
        for kept in by_rank.values():
            check_names(kept, "state: delta", ("counts", "changed"), needed="counts")
        self._begin_next()
        self.number = max((int(kept["counts"][0]) for kept in by_rank.values()), default=0)
        ours = by_rank.get(rank_key(*self._place).partition(" ")[0], {})
        self._goes_on = bool(ours) and int(ours["counts"][2]) == self._tables_key()
        self._is_whole = not self._goes_on or bool(ours["counts"][1])
        if self._goes_on:
            sizes = [len(changed) for changed in self._changed]
            bits = torch.from_numpy(np.unpackbits(ours["changed"].numpy(), count=sum(sizes)))
            for changed, loaded in zip(self._changed, torch.split(bits, sizes), strict=True):
                changed.copy_(loaded)
        elif state:
            _log.warning("delta: the state is of other ranks or tables; next, all rows go")

    def _tables_key(self) -> int:
        """Return a number that tells shards of other tables or sizes apart."""
        shards = [[list(bank.shards), list(bank.num_rows), bank.dims] for bank in self._banks]
        return zlib.crc32(json.dumps(shards).encode())

    def _begin_next(self) -> None:
        self._watch.note_cleared()
        for changed in self._changed:
            changed.zero_()
        self.number, self._is_whole = self.number + 1, False

    def _blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the file (FORMAT.md, "Files of rows")."""
        pairs = zip(self._banks, self._changed, strict=True)
        shards = [shard for bank, changed in pairs for shard in self._shards(bank, changed)]
        header = {"number": self.number, "whole": self._is_whole}
        header |= dict(zip(("rank", "ranks"), self._place, strict=True))
        text = json.dumps(header | {"tables": [of_table for of_table, *_ in shards]}).encode()
        text = text.ljust((len(text) + 7) // 8 * 8)
        begin = MAGIC + pack("<3I", VERSION, len(text), zlib.crc32(text)) + text
        yield begin
        key, number = zlib.crc32(begin), 0
        for of_table, values, chosen in shards:
            for part in torch.split(chosen.nonzero().view(-1), of_table["counts"]):
                yield from self._part(part.cpu(), values.index_select(0, part), key, number)
                number += 1

    def _shards(
        self, bank: Bank, changed: Tensor
    ) -> Iterator[tuple[dict[str, Any], Tensor, Tensor]]:
        """Yield of each table its header, [rows, D] values, and [rows] bool, rows to write."""
        sizes, matrix = list(bank.num_rows), bank.resident()[WEIGHTS]
        chosen = torch.split(changed | self._is_whole, sizes)
        for number, values in enumerate(torch.split(matrix, sizes)):
            size = max(1, _VALUES // values.shape[1])
            whole, rest = divmod(int(chosen[number].sum()), size)
            header = {
                "name": bank.tables[number], "dim": values.shape[1],
                "first_row": bank.offsets[number][0], "first_column": bank.offsets[number][1],
                "counts": [size] * whole + [rest] * (rest > 0),
            }  # fmt: skip
            yield header, values, chosen[number]

    def _part(self, rows: Tensor, values: Tensor, key: int, number: int) -> Iterator[bytes]:
        """Yield a message of ids and a frame of rows."""
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
            buffer, frame_nbytes, [1], layouts=[zlib.crc32(ids, key)], call=number,
            codecs=int64_tensor([self.codec.wire_id]), num_rows=segments.num_rows,
            nbytes=encoded.nbytes,
        )  # fmt: skip
        yield buffer.numpy().tobytes()


def _check_names(model: nn.Module) -> None:
    """Raise ValueError if two collections have tables of one name, on whatever rank they are."""
    paths: dict[str, str] = {}
    for path, module in model.named_modules():
        for name in getattr(module, "module_sharding_plan", ()):
            first = paths.setdefault(name, path)
            if first and not f"{path}.".startswith(f"{first}."):  # the latter holds the former
                raise ValueError(f"delta: two tables are called {name!r}: in {first} and {path}")


def _sync_folder(folder: Path) -> None:
    """Wait until the folder's list of files is on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
