"""Debugger: measure how codecs change tables and gradients, in some steps of a training.

It looks at values before they are encoded, and encodes them once more into its own memory. It sends
nothing, draws no noise and changes no state, so a training goes on bit by bit as without it. On a
GPU a measured step waits for the device.

Knows: sessions, collectives of rows, all-reduces of gradients. Does not know: TorchRec.
"""

from collections import defaultdict
from collections.abc import Iterator
from math import sqrt
from typing import cast

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import BucketChunks, ChunkSpan, Piece
from trec_qcomm.comm.dense.low_rank.matrices import parameter_of
from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.comm.rows.doors import Call, Observer
from trec_qcomm.config import Config
from trec_qcomm.core.codec import check_dim
from trec_qcomm.integration.extension import Extension
from trec_qcomm.integration.gradients.all_reduce import GradientAllReduce
from trec_qcomm.integration.session import Session
from trec_qcomm.lab.debug.coding import pack
from trec_qcomm.lab.debug.recorded import DebugRun
from trec_qcomm.lab.debug.recorder import Measurement, Recorder
from trec_qcomm.lab.debug.rule import DebugRule, check_patterns
from trec_qcomm.lab.debug.summary import run_summary
from trec_qcomm.lab.debug.tally import Tally
from trec_qcomm.lab.records import DebugRecord, Direction

MOST_SHOWN = 5  # lines of a summary
NAME = "debug"  # of the extension


class Debugger(Extension, Observer):
    """Numeric debugger on one rank; `QComm.debug` and the config's `debug` make it.

    A session has at most one at work; one that has stopped keeps its records.

    Attributes: recorder: its records and what they cost.
    """

    def __init__(self, rule: DebugRule, config: Config, *, from_first_step: bool = False) -> None:
        """Prepare; `start`, or `add_gradients` of a DDP without a session, lets it measure.

        Args:
            rule: what to measure.
            config: config of the training; records have its name and seed.
            from_first_step: whether steps are counted from the first step that is seen, not from 0.
        """
        self.rule = rule
        self.recorder = Recorder(config, rule.folder)
        self._first: int | None = None if from_first_step else 0
        self._session: Session | None = None
        self._is_at_work = True
        self._places: dict[str, tuple[str, str]] = {}  # module and hop, by collective

    @property
    def records(self) -> list[DebugRecord]:
        """Latest records of this rank, in order."""
        return list(self.recorder.latest)

    def summary(self) -> str:
        """Return a text of what stands out in the latest records, and what to do about it."""
        if not self.recorder.latest:
            return "debug: nothing was measured so far"
        run = DebugRun(f"rank {self.records[0].rank}", self.records)
        measured_s, elapsed_s = self.recorder.cost()
        share = f", {measured_s / elapsed_s:.2%} of the time" if len(run.steps) > 1 else ""
        cost = f"Measuring took {measured_s:.2f} s{share}."
        return f"{run_summary(run, top=MOST_SHOWN)}\n{cost}"

    def start(self, session: Session) -> None:
        """Measure a session's collectives and all-reduces from the next call on.

        Raises: ValueError: a debugger is at work, a pattern without a table or parameter, or a
            shadow that does not take rows of their length.
        """
        if (before := debugger_of(session)) is not None and before._is_at_work:
            raise ValueError("debug: a debugger is at work already; end that one first")
        self._session = session
        try:
            for module, collective in session.collectives.by_module():
                self.add_collective(collective, module)
            for name, gradients in session.gradients.items():
                self.add_gradients(name, gradients)
            if session.is_whole:
                self.check_names()
        except ValueError:
            self.stop()
            raise
        session.extensions[NAME] = self

    def stop(self) -> None:
        """Stop measuring."""
        assert self._session is not None
        self._is_at_work = False
        for collective in self._session.collectives:
            collective.remove_observer(self)
        for gradients in self._session.gradients.values():
            gradients.set_observer(None)

    def add_collective(self, collective: RowCollective, module: str) -> None:
        if not self._is_at_work:
            return
        layout = collective.layout
        seen = [s for shards in layout.shards_by_rank for s in shards if self.rule.matches(s.table)]
        if seen and collective.dtype != torch.float32:
            raise ValueError(
                f"debug: table {seen[0].table!r}: its rows are {collective.dtype}; allowed: "
                "torch.float32 (output_dtype fp32)"
            )
        for shard in seen:
            self.check_dim(shard.dim, f"table {shard.table!r}")
        self._places[collective.name] = module, "intra_" if collective.intra else ""
        collective.add_observer(self)

    def add_gradients(self, name: str, gradients: GradientAllReduce) -> None:
        if not self._is_at_work:
            return
        for shape in gradients.shapes:
            if self.rule.matches(shape.name):
                self.check_dim(shape.block, f"block of {shape.name!r}")
        direction: Direction = "dense" if name == "dense" else "data_parallel"
        gradients.set_observer(GradientDebugger(self, direction))

    def check_names(self) -> None:
        if not self._is_at_work or self._session is None:
            return
        session = self._session
        names = session.tables | {s.name for g in session.gradients.values() for s in g.shapes}
        patterns = (pattern for pattern in self.rule.tables if pattern != "*")
        check_patterns("debug.tables", patterns, names, "table and no dense parameter")

    def check_dim(self, dim: int, where: str) -> None:
        """Raise ValueError if a shadow does not take rows of `dim` values."""
        for number, codec in enumerate(self.rule.shadow):
            check_dim(codec, dim, f"debug.shadow[{number}]: {where}")

    def is_due(self, step: int) -> bool:
        """Return whether a training step is measured."""
        if self._first is None:
            self._first = step
        return (step - self._first) % self.rule.every == 0

    def before_encoding(self, call: Call, values: Tensor, placed: PlacedFrames) -> None:
        """Measure rows that are about to be sent in training."""
        if not (call.is_training and self.is_due(call.step)):
            return
        with self.recorder.timed():
            measurement, tables = Measurement(self.rule.shadow), placed.plan.tables
            names = [table if self.rule.matches(table) else None for table in tables]
            packed = pack(values, placed, seed=call.seed, tolerances=call.tolerances, names=names)
            for rows in packed:
                measurement.add(rows)
            module, hop = self._places[call.name]
            direction = cast(Direction, hop + call.direction)
            records = self.recorder.records(measurement, call.step, direction, module=module)
            self.recorder.add(records)


def debugger_of(session: Session) -> Debugger | None:
    """Return the latest debugger of a session, which may have stopped; None before the first."""
    debugger = session.extensions.get(NAME)
    assert debugger is None or isinstance(debugger, Debugger)
    return debugger


class GradientDebugger:
    """GradientObserver (comm.dense.coder) of the all-reduces of one DDP.

    On a CPU an all-reduce runs in a separate thread, and so do these measurements.

    Args: debugger: the debugger.  direction: "dense" or "data_parallel".
    """

    def __init__(self, debugger: Debugger, direction: Direction) -> None:
        self.debugger, self.direction = debugger, direction

    def matches(self, name: str) -> bool:
        """Return whether a parameter, or the parameter of a factor, is measured."""
        return self.debugger.rule.matches(parameter_of(name))

    def begin(self, chunks: BucketChunks, step: int) -> "BucketDebugger | None":
        """Return an observer of one bucket, or None if this step is not measured."""
        return BucketDebugger(self, chunks, step) if self.debugger.is_due(step) else None


class BucketDebugger:
    """GradientMeasurement (comm.dense.coder) of the all-reduce of one bucket."""

    def __init__(self, observer: GradientDebugger, chunks: BucketChunks, step: int) -> None:
        self._chunks, self._step = chunks, step
        self._recorder, self._matches = observer.debugger.recorder, observer.matches
        self._shadows, self._direction = observer.debugger.rule.shadow, observer.direction
        codecs = {p.name: chunks.coding_of(n).codec for n, p in enumerate(chunks.parameters)}
        self._codecs = codecs  # by parameter
        self._coded = {(codecs[p.name], p.block) for p in chunks.parameters}
        self._sent: dict[str, Measurement] = {}  # by site
        self._kept: dict[tuple[str, str], Tally] = defaultdict(Tally)  # by site and parameter
        self._gradient_squares: dict[tuple[str, str], float] = defaultdict(float)

    def sent(
        self, values: Tensor, span: ChunkSpan, site: str, *, seed: int, tolerances: Tensor | None
    ) -> None:
        """Measure the values to send."""
        with self._recorder.timed():
            segments = [self._chunks.names[p] for p in span.placed.plan.table.tolist()]
            names = [name if self._matches(name) else None for name in segments]
            measurement = self._sent.setdefault(site, Measurement(self._shadows))
            for rows in pack(values, span.placed, seed=seed, tolerances=tolerances, names=names):
                is_coded = (rows.codec, rows.segments.dim) in self._coded
                measurement.add(rows, with_shadows=is_coded)

    def kept(self, gradient: Tensor, residual: Tensor, span: ChunkSpan, site: str) -> None:
        """Measure the codec's error of coded values."""
        with self._recorder.timed():
            for piece in self._chunks.pieces:
                inside = span.begin <= piece.start < span.end and piece.coded
                if inside and self._matches(piece.name):
                    part = slice(piece.start - span.begin, piece.end - span.begin)
                    self._add_kept(gradient[part], residual[part], piece, site)

    def _add_kept(self, gradient: Tensor, residual: Tensor, piece: Piece, site: str) -> None:
        rows = residual.view(-1, self._chunks.parameters[piece.parameter].block)
        squares = float(gradient[gradient.isfinite()].double().square().sum())
        self._kept[site, piece.name].add(rows, rows)
        self._gradient_squares[site, piece.name] += squares

    def end(self, values: Tensor) -> None:
        """Write the records of the bucket."""
        recorder = self._recorder
        with recorder.timed():
            for site, measurement in self._sent.items():
                recorder.add(recorder.records(measurement, self._step, self._direction, site=site))
            recorder.add(list(self._records_of_kept()))

    def _records_of_kept(self) -> Iterator[DebugRecord]:
        for (site, name), tally in self._kept.items():
            gradient = self._gradient_squares[site, name]
            yield self._recorder.record(
                self._step, name, "residual", repr(self._codecs[name]), tally.figures_of_x(),
                site=site,
                residual_over_gradient=sqrt(tally.sums()["xx"] / gradient) if gradient else None,
            )  # fmt: skip
