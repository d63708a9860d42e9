"""Debugger: measures what codecs do to tables and gradients, in some steps of a training.

It looks at values before they are encoded, encodes them once more into memory of its own, and looks
at what was received before it is used. It sends nothing, draws no noise and changes no state, so a
training goes on bit by bit as without it. On a GPU a measured step waits for the device.

Knows: sessions, collectives of rows, all-reduces of gradients. Does not know: TorchRec.
"""

import math
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import BucketChunks, ChunkSpan, Piece
from trec_qcomm.comm.dense.low_rank.matrices import parameter_of
from trec_qcomm.comm.frames.plan import FramePlan, PlacedFrames
from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.comm.rows.doors import Call, Observer
from trec_qcomm.core.codec import check_dim
from trec_qcomm.core.segments import Segments
from trec_qcomm.integration.extension import Extension
from trec_qcomm.integration.gradients.all_reduce import GradientAllReduce
from trec_qcomm.integration.session import Session
from trec_qcomm.lab.debug.coding import pack
from trec_qcomm.lab.debug.measurement import Measurement, received_squares
from trec_qcomm.lab.debug.recorded.run import DebugRun
from trec_qcomm.lab.debug.recorded.text import show_text
from trec_qcomm.lab.debug.recorder import Recorder
from trec_qcomm.lab.debug.rule import DebugRule
from trec_qcomm.lab.debug.tally import Tally, segment_squares
from trec_qcomm.lab.records import DebugRecord, Direction

MOST_SHOWN = 5  # lines of a summary
NAME = "debug"  # of the extension


class Debugger:
    """Numeric debugger of one QComm on one rank; `QComm.debug` and the config's `debug` make it.

    Attributes: recorder: its records and what they cost.
    """

    def __init__(
        self,
        rule: DebugRule,
        *,
        configuration: str,
        seed: int,
        from_first_step: bool = False,
    ) -> None:
        """Prepare; the collectives call it from then on.

        Args:
            rule: what to measure.
            configuration: name of the configuration, for the records.
            seed: the config's seed.
            from_first_step: whether steps are counted from the first one that is seen, not from 0.
        """
        self.rule = rule
        self.recorder = Recorder(configuration=configuration, folder=rule.folder, seed=seed)
        self._first: int | None = None if from_first_step else 0
        self._matches: dict[str, bool] = {}

    @property
    def records(self) -> list[DebugRecord]:
        """The latest records of this rank, in order."""
        return list(self.recorder.latest)

    def summary(self) -> str:
        """Return what stands out in the latest records, and what to do about it, as text."""
        if not self.recorder.latest:
            return "debug: nothing was measured so far"
        run = DebugRun(f"rank {self.records[0].rank}", self.records)
        measured_s, elapsed_s = self.recorder.cost()
        share = f", {measured_s / elapsed_s:.2%} of the time" if len(run.steps) > 1 else ""
        cost = f"Measuring took {measured_s:.2f} s{share}."
        return f"{show_text(run, top=MOST_SHOWN)}\n{cost}"

    def add(self, collective: RowCollective, module: str) -> None:
        """Observe a collective from now on.

        Args: module: path of the sharded module.
        Raises: ValueError: a shadow does not take rows of such a length, or they are not float32.
        """
        seen = [t for t in collective.layout.tables() if self.matches(t)]
        if seen and collective.dtype != torch.float32:
            raise ValueError(
                f"debug: table {seen[0]!r}: its rows are {collective.dtype}; allowed: "
                "torch.float32 (output_dtype fp32)"
            )
        for shards in collective.layout.shards_by_rank:
            for shard in shards:
                if self.matches(shard.table):
                    self.check_dim(shard.dim, f"table {shard.table!r}")
        before = [o for o in collective.observers if isinstance(o, RowDebugger)]
        if not any(o.debugger is self for o in before):
            collective.add_observer(RowDebugger(self, collective, module))

    def remove(self, collective: RowCollective) -> None:
        """Observe a collective no more, and write records of exchanges whose end was not seen."""
        for observer in collective.observers:
            if isinstance(observer, RowDebugger) and observer.debugger is self:
                observer.close()
                collective.remove_observer(observer)

    def watch(self, gradients: GradientAllReduce, direction: Direction) -> None:
        """Observe the all-reduce of a DDP that was registered.

        Args: direction: "dense" or "data_parallel".
        Raises: ValueError: a shadow does not take blocks of such a length.
        """
        for shape in gradients.shapes:
            if self.matches(shape.name):
                self.check_dim(shape.block, f"block of {shape.name!r}")
        gradients.set_observer(GradientDebugger(self, direction))

    def check_dim(self, dim: int, where: str) -> None:
        """Raise ValueError where a shadow does not take rows of `dim` values."""
        for number, codec in enumerate(self.rule.shadow):
            check_dim(codec, dim, f"debug.shadow[{number}]: {where}")

    def matches(self, name: str) -> bool:
        """Return whether a table or parameter is measured."""
        if name not in self._matches:
            self._matches[name] = self.rule.matches(name)
        return self._matches[name]

    def is_due(self, step: int) -> bool:
        """Return whether a training step is measured."""
        if self._first is None:
            self._first = step
        return (step - self._first) % self.rule.every == 0


class RowDebugger(Observer):
    """Observer of one collective of rows.

    Args: debugger: the debugger.  collective: the collective.  module: path of its module.
    """

    def __init__(self, debugger: Debugger, collective: RowCollective, module: str) -> None:
        self.debugger = debugger
        self._recorder, self._module = debugger.recorder, module
        self._peers, self._hop = collective.peers.ranks, "intra_" if collective.intra else ""
        self._waiting: dict[tuple[str, int], list[DebugRecord]] = {}  # by direction and step

    def looks_at_received(self, call: Call) -> bool:
        """Return whether a step is measured; evaluation is not."""
        return call.is_training and self.debugger.is_due(call.step)

    def before_encoding(self, call: Call, values: Tensor, placed: PlacedFrames) -> None:
        """Measure rows that are about to be sent; their records wait for what is received."""
        if not self.looks_at_received(call):
            return
        with self._recorder.timed():
            plan = placed.plan
            measurement, names = Measurement(self.debugger.rule.shadow), self._names(plan)
            packed = pack(values, placed, seed=call.seed, tolerances=call.tolerances, names=names)
            for rows in packed:
                measurement.add(rows, len(plan.segments_per_frame))
            records = self._records(call, measurement, plan.fan_out)
            self._waiting[call.direction, call.step] = records

    def _records(self, call: Call, measurement: Measurement, fan_out: int) -> list[DebugRecord]:
        squares, made = measurement.sent_squares, []
        for key, figures in measurement.figures():
            sent: dict[str, tuple[float | int, ...]] = {}
            if not key.is_shadow:
                sent = {"peers": self._peers, "sent_squares": tuple(squares[key.name] * fan_out)}
            made.append(
                self._recorder.record(
                    call.step, key.name, self._direction(call), key.codec, figures,
                    is_shadow=key.is_shadow, module=self._module, **sent,
                )
            )  # fmt: skip
        return made

    def after_decoding(self, call: Call, values: Tensor, placed: PlacedFrames) -> None:
        """Add to the records what was received, and write them."""
        with self._recorder.timed():
            plan = placed.plan
            squares = received_squares(values, placed, self._names(plan))
            done = []
            for record in self._waiting.pop((call.direction, call.step), []):
                if not record.is_shadow and record.name in squares:
                    came = tuple(squares.pop(record.name))
                    record = replace(record, received_squares=came)
                done.append(record)
            codecs = {plan.tables[int(s)]: c for c, _, members in plan.groups for s in members}
            for name, came_alone in squares.items():
                done.append(
                    self._recorder.record(
                        call.step, name, self._direction(call), repr(codecs[name]), {},
                        module=self._module, peers=self._peers,
                        received_squares=tuple(came_alone),
                    )
                )  # fmt: skip
            self._recorder.add(done)

    def _direction(self, call: Call) -> Direction:
        return cast(Direction, self._hop + call.direction)

    def _names(self, plan: FramePlan) -> list[str | None]:
        return [table if self.debugger.matches(table) else None for table in plan.tables]

    def close(self) -> None:
        """Write the records of exchanges whose end was not seen."""
        for waiting in self._waiting.values():
            self._recorder.add(waiting)
        self._waiting.clear()


class GradientDebugger:
    """Observer of the all-reduces of one DDP; see comm.dense.hooks.GradientObserver.

    On a CPU an all-reduce runs in a thread of its own, and so does what is measured here.

    Args: debugger: the debugger.  direction: "dense" or "data_parallel".
    """

    def __init__(self, debugger: Debugger, direction: Direction) -> None:
        self.debugger, self.direction = debugger, direction

    def matches(self, name: str) -> bool:
        """Return whether a parameter is measured, or the one of which this is a factor."""
        return self.debugger.matches(parameter_of(name))

    def begin(self, chunks: BucketChunks, step: int) -> "BucketDebugger | None":
        """Return an onlooker of one bucket, or None if this step is not measured."""
        return BucketDebugger(self, chunks, step) if self.debugger.is_due(step) else None


class BucketDebugger:
    """Onlooker of the all-reduce of one bucket; see comm.dense.hooks.GradientMeasurement."""

    def __init__(self, observer: GradientDebugger, chunks: BucketChunks, step: int) -> None:
        self._chunks, self._step = chunks, step
        self._recorder, self._matches = observer.debugger.recorder, observer.matches
        self._shadows, self._direction = observer.debugger.rule.shadow, observer.direction
        codecs = {p.name: chunks.coding_of(n).codec for n, p in enumerate(chunks.parameters)}
        self._codecs = codecs  # by parameter
        self._coded = {(codecs[p.name], p.block) for p in chunks.parameters}
        self._sent: dict[str, Measurement] = {}  # by site
        self._kept: dict[tuple[str, str], Tally] = {}  # by site and parameter
        self._gradient_squares: dict[tuple[str, str], float] = {}

    def sent(
        self, values: Tensor, span: ChunkSpan, site: str, *, seed: int, tolerances: Tensor | None
    ) -> None:
        """Measure what is about to be sent."""
        with self._recorder.timed():
            plan, parameters = span.placed.plan, self._chunks.names
            segment_names = [parameters[p] for p in plan.table.tolist()]
            names = [name if self._matches(name) else None for name in segment_names]
            measurement = self._sent.setdefault(site, Measurement(self._shadows))
            for rows in pack(values, span.placed, seed=seed, tolerances=tolerances, names=names):
                is_coded = (rows.codec, rows.segments.dim) in self._coded
                measurement.add(rows, len(plan.segments_per_frame), with_shadows=is_coded)

    def kept(self, gradient: Tensor, residual: Tensor, span: ChunkSpan, site: str) -> None:
        """Measure what the codec kept back of coded values."""
        with self._recorder.timed():
            for piece in self._chunks.pieces:
                inside = span.begin <= piece.start < span.end and piece.coded
                if inside and self._matches(piece.name):
                    part = slice(piece.start - span.begin, piece.end - span.begin)
                    self._add_kept(gradient[part], residual[part], piece, site)

    def _add_kept(self, gradient: Tensor, residual: Tensor, piece: Piece, site: str) -> None:
        rows = residual.view(-1, self._chunks.parameters[piece.parameter].block)
        key = site, piece.name
        self._kept.setdefault(key, Tally()).add(rows, rows)
        self._gradient_squares[key] = self._gradient_squares.get(key, 0.0) + _squares(gradient)

    def end(self, values: Tensor) -> None:
        """Write the records of the bucket."""
        with self._recorder.timed():
            means = dict.fromkeys(filter(self._matches, self._chunks.names), 0.0)
            for piece in self._chunks.pieces:
                if piece.name in means:
                    means[piece.name] += _squares(values[piece.start : piece.end])
            self._recorder.add([*self._records_of_sent(means), *self._records_of_kept()])

    def _records_of_sent(self, means: dict[str, float]) -> list[DebugRecord]:
        return [
            self._recorder.record(
                self._step, key.name, self._direction, key.codec, figures,
                is_shadow=key.is_shadow, site=site,
                received_squares=() if key.is_shadow else (means[key.name],),
            )
            for site, measurement in self._sent.items()
            for key, figures in measurement.figures()
        ]  # fmt: skip

    def _records_of_kept(self) -> list[DebugRecord]:
        made = []
        for (site, name), tally in self._kept.items():
            gradient = self._gradient_squares[site, name]
            ratio = math.sqrt(tally.sums()["xx"] / gradient) if gradient > 0 else None
            made.append(
                self._recorder.record(
                    self._step, name, "residual", repr(self._codecs[name]), tally.figures_of_x(),
                    site=site, residual_over_gradient=ratio,
                )
            )  # fmt: skip
        return made


def _squares(values: Tensor) -> float:
    """Return the sum of squares of the finite ones of [n] values."""
    return float(segment_squares(values, Segments.packed([1], len(values))))


class AttachedDebugger(Extension):
    """The latest debugger of a session, and whether it is at work: at most one at a time.

    Args: session: the session of a QComm.
    Derived: latest: the debugger, which may have stopped; None before the first.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.latest: Debugger | None = None
        self._at_work: Debugger | None = None

    def start(self, rule: DebugRule, **options: Any) -> Debugger:
        """Measure from the next call on what codecs do.

        Args:
            rule: what to measure.
            options: from_first_step of Debugger.
        Raises: ValueError: a debugger is at work, a pattern without a table or parameter, or a
            shadow that does not take rows of their length.
        """
        if self._at_work is not None:
            raise ValueError("debug: a debugger is at work already")
        session, config = self._session, self._session.config
        debugger = Debugger(rule, configuration=config.source, seed=config.seed, **options)
        self._at_work = debugger
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
        self.latest = debugger
        return debugger

    def add_collective(self, collective: RowCollective, module: str) -> None:
        if self._at_work is not None:
            self._at_work.add(collective, module)

    def add_gradients(self, name: str, gradients: GradientAllReduce) -> None:
        if self._at_work is not None:
            self._at_work.watch(gradients, "dense" if name == "dense" else "data_parallel")

    def check_names(self) -> None:
        if self._at_work is None:
            return
        session = self._session
        names = session.tables | {s.name for g in session.gradients.values() for s in g.shapes}
        for pattern in self._at_work.rule.tables:
            if pattern != "*" and not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"debug.tables: {pattern!r} matches no table and no dense parameter; there "
                    f"are: {', '.join(sorted(names))}"
                )

    def stop(self) -> None:
        """End what `start` began; `latest` keeps its records."""
        if self._at_work is not None:
            for collective in self._session.collectives:
                self._at_work.remove(collective)
        for gradients in self._session.gradients.values():
            gradients.set_observer(None)
        self._at_work = None


def debugger_of(session: Session) -> AttachedDebugger:
    """Return the debugger of a session, which gets one here if it has none."""
    attached = session.extensions.setdefault(NAME, AttachedDebugger(session))
    assert isinstance(attached, AttachedDebugger)
    return attached
