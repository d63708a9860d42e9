"""RowCapture: keep the rows that each table sends forward in a few steps, to choose codecs by.

Rows are kept before they are coded, so they are exact. A block is the rows that one rank sends one
rank (or itself) for one table and column shard in a step. Blocks of row-wise tables are partial
sums.

Knows: sessions, process groups. Does not know: TorchRec, how the rows are judged.
"""

import io
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.peers import Peers
from trec_qcomm.comm.rows.doors import Call, Observer
from trec_qcomm.comm.rows.reduce_scatter import PooledReduceScatter
from trec_qcomm.core.stats import TableBags
from trec_qcomm.ext.dual_level.error_bound import count_distinct
from trec_qcomm.ext.planner.cost_model import FLOAT32_NBYTES
from trec_qcomm.integration.session import Session
from trec_qcomm.lab.sizes.rows import Blocks, write_rows

CAPTURED_NBYTES = 2**28
_FILE_NBYTES = 2**26  # room for what torch.save adds: names of tables, a header a block
_log = logging.getLogger(__name__)


class _KeptRows:
    """Blocks of rows in a memory of which each table has an equal share, so that none is empty.

    Args: nbytes: size of the memory.  num_tables: number of tables.
    """

    def __init__(self, nbytes: int, num_tables: int) -> None:
        self.share_nbytes = nbytes // max(num_tables, 1)
        self.by_table: Blocks = {}
        self.num_left_out = 0
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)  # see RowCapture.save
        self._used_nbytes: Counter[str] = Counter()

    def add(self, table: str, block: Tensor) -> None:
        """Count a block, and keep it, or as many rows of it as there is room for."""
        self.counts[table].update(num_blocks=1, num_sent=len(block))
        if not len(block):
            return
        blocks = self.by_table.setdefault(table, [])
        room = self.share_nbytes - self._used_nbytes[table]
        num_rows = room // (block.shape[1] * FLOAT32_NBYTES)
        if blocks and block.shape[1] != blocks[0].shape[1]:  # a column shard of another width
            num_rows = 0
        if num_rows > 0:
            blocks.append(block[:num_rows].cpu().clone())
            self._used_nbytes[table] += blocks[-1].nbytes
        self.num_left_out += max(len(block) - num_rows, 0)


class RowCapture(Observer):
    """Rows that this rank sends in the next training steps; `QComm.capture_rows` makes it.

    It ends by itself after the last step. A block is [n, D] float32.
    """

    def __init__(self, session: Session, *, steps: int, gradients: bool, max_nbytes: int) -> None:
        """Begin. The arguments are those of QComm.capture_rows, and the session."""
        observed = [c for c in session.collectives if not c.intra]
        if type(steps) is not int or steps < 1:
            raise ValueError(f"capture_rows: steps: {steps!r} is not an integer >= 1")
        if not observed:
            raise ValueError("capture_rows: no table is sharded yet (call it then) or sent")
        dtypes = {c.dtype for c in observed} - {torch.float32}
        if dtypes:
            raise ValueError(
                f"capture_rows: there are rows of {dtypes.pop()}; allowed: torch.float32 "
                "(output_dtype fp32)"
            )
        before = {o for c in observed for o in c.observers if isinstance(o, RowCapture)}
        if any(not capture.is_done for capture in before):
            raise ValueError("capture_rows: rows are captured already; stop() ends that")
        self.steps, self.tables, self._source = steps, sorted(session.tables), session.config.source
        self._session, self._max_nbytes = session, max_nbytes
        self._first_steps = {collective.name: collective.step for collective in observed}
        self._next_steps = dict(self._first_steps)
        self._transformed = {c.name for c in observed if c.transform is not None}
        sent = {s.table for c in observed for s in c.layout.shards_by_rank[c.rank]}
        received = {table for c in observed for table in c.layout.tables()}
        nbytes = max_nbytes // (dist.get_world_size() * (2 if gradients else 1))
        self._kept = {"forward": _KeptRows(nbytes, len(sent))}
        if gradients:
            self._kept["backward"] = _KeptRows(nbytes, len(received))
        widest = max(s.dim for c in observed for shards in c.layout.shards_by_rank for s in shards)
        share = min(kept.share_nbytes for kept in self._kept.values())
        if share < widest * FLOAT32_NBYTES:
            least = -(-widest * FLOAT32_NBYTES * max_nbytes // max(share, 1))
            raise ValueError(f"capture_rows: max_nbytes: {max_nbytes!r}: give {least} or more")
        self._bags, self._first_bags = session.bags, session.bags.stats().tables
        self._num_rows = session.table_rows
        sums = [c for c in observed if isinstance(c, PooledReduceScatter)]
        self._partial = {table for c in sums for table in c.layout.tables()}
        for collective in observed:
            collective.add_observer(self)

    @property
    def rows(self) -> Blocks:
        """Rows that this rank has sent."""
        return self._kept["forward"].by_table

    @property
    def gradients(self) -> Blocks:
        """Gradients of rows that this rank has sent, if they are kept."""
        return self._kept["backward"].by_table if "backward" in self._kept else {}

    @property
    def num_steps(self) -> int:
        """Number of steps whose rows were sent so far, up to `steps`."""
        ends = (self._next_steps[name] - first for name, first in self._first_steps.items())
        return min(*ends, self.steps)

    @property
    def is_done(self) -> bool:
        """Whether all steps were seen."""
        return self.num_steps == self.steps

    @property
    def num_left_out(self) -> int:
        """Number of rows and gradients of this rank for which there was no room."""
        return sum(kept.num_left_out for kept in self._kept.values())

    def before_encoding(self, call: Call, values: Tensor, placed: PlacedFrames) -> None:
        """Keep the rows or gradients that are about to be sent in training."""
        direction = call.direction
        if not call.is_training or direction not in self._kept:
            return
        first = self._first_steps.setdefault(call.name, call.step)  # of a resharded module: now
        if call.step >= first + self.steps and self.is_done:
            self.stop()
        self._next_steps[call.name] = call.step + 1
        if first <= call.step < first + self.steps:
            kept, joint = self._kept[direction], defaultdict(list)
            for group in placed.groups:
                for s, segment in enumerate(group.members.tolist()):
                    block, table = group.segments.block(values, s), placed.plan.tables[segment]
                    kept.add(table, block)
                    joint[table, segment % placed.plan.segments_per_frame[0]].append(block)
            is_joint = call.name not in self._transformed  # else equal rows differ by peer
            for (table, _), blocks in joint.items() if direction == "forward" else ():
                num_joint = count_distinct(torch.cat(blocks).view(torch.int32)) if is_joint else 0
                kept.counts[table].update(num_joint=num_joint, num_joint_sets=int(is_joint))

    def _counts(self) -> dict[str, dict[str, int]]:
        """Return what this rank counted of each table."""
        counts = {table: dict(sent) for table, sent in self._kept["forward"].counts.items()}
        for table, now in self._bags.stats().tables.items():
            before = self._first_bags.get(table, TableBags())
            if before.num_bags > now.num_bags:  # the statistics were reset since
                before = TableBags()
            bags, distinct = now.num_bags - before.num_bags, now.num_sent - before.num_sent
            counts.setdefault(table, {}).update(num_bags=bags, num_distinct=distinct)
        return counts

    def stop(self) -> None:
        """End before the last step."""
        for collective in self._session.collectives:
            collective.remove_observer(self)

    def save(self, path: str | Path) -> None:
        """Write the rows of all ranks to a file, on rank 0. Collective; it ends the capture.

            python -m trec_qcomm preview rows.pt --out mine.yaml

        The file is {"rows", "gradients": {table: [blocks [n, D] float32]}, "without_rows":
        [tables], "tables": {table: counts}, "meta": {...}} for torch.load(path,
        weights_only=True). Tables without rows are DATA_PARALLEL, or no batch looked them up.

        Counts of a table are:
        - `num_rows`: rows of the table
        - `num_sent`, `num_blocks`: rows that were sent, in so many blocks, left-out rows included
        - `num_joint`: distinct rows of a step's blocks to all peers together, summed over
          `num_joint_sets` steps and features. Both are 0 for tables that are sent together with a
          table that has error_feedback.forward_rows: its residuals make equal rows differ.
        - `num_bags`, `num_distinct`: bags and distinct bags, if equal bags may be merged
        - `is_partial`: whether the rows are partial sums of a row-wise table

        Do not publish such a file: its rows hold traces of real data.

        Raises: ValueError: nothing was sent in these steps.
        """
        self.stop()
        buffer = io.BytesIO()
        content = {
            "rows": self.rows,
            "gradients": self.gradients,
            "left_out": self.num_left_out,
            "counts": self._counts(),
        }
        torch.save(content, buffer)
        everyone = dist.group.WORLD
        assert everyone is not None
        room = self._max_nbytes + _FILE_NBYTES
        gathered = Peers(everyone).gather_bytes(buffer.getvalue(), "captured rows", max_nbytes=room)
        parts = [torch.load(io.BytesIO(part), weights_only=True) for part in gathered]
        rows = _merged(part["rows"] for part in parts)
        if not rows:
            raise ValueError("capture_rows: nothing was captured; train one step or more first")
        if dist.get_rank() != 0:
            return
        num_left_out = sum(part["left_out"] for part in parts)
        if num_left_out:
            _log.warning("capture_rows: %d rows left out; see max_nbytes", num_left_out)
        tables: dict[str, dict[str, int | bool]] = {}
        for table in rows:
            sums: Counter[str] = Counter()
            for part in parts:
                sums.update(part["counts"].get(table, {}))
            known = {"num_rows": self._num_rows[table]} if table in self._num_rows else {}
            tables[table] = {**sums, **known, "is_partial": table in self._partial}
        write_rows(
            path,
            rows,
            gradients=_merged(part["gradients"] for part in parts),
            without_rows=[table for table in self.tables if table not in rows],
            tables=tables,
            meta={
                "config": self._source, "steps": self.steps, "num_left_out": num_left_out,
                "world_size": len(parts),
            },
        )  # fmt: skip


def _merged(parts: Iterable[Blocks]) -> Blocks:
    """Return the blocks of all ranks. Of a table's column shards those of the first width stay."""
    merged: Blocks = {}
    for part in parts:
        for table, blocks in part.items():
            known = merged.setdefault(table, [])
            width = (known or blocks)[0].shape[1]
            known += [block for block in blocks if block.shape[1] == width]
    return dict(sorted(merged.items()))
