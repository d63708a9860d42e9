"""GradientDebugger: what an all-reduce of gradients does to each parameter, in measured steps.

On a CPU an all-reduce runs in a thread of its own, and so does what is measured here.

Knows: chunks of buckets, sites, residuals. Does not know: DDP, process groups, algorithms.
"""

import math
from collections.abc import Callable

from torch import Tensor

from trec_qcomm.comm.dense.chunks import BucketChunks, ChunkSpan, Piece
from trec_qcomm.comm.dense.low_rank.matrices import parameter_of
from trec_qcomm.core.segments import Segments
from trec_qcomm.lab.debug.coding import pack
from trec_qcomm.lab.debug.measurement import Measurement
from trec_qcomm.lab.debug.recorder import Recorder
from trec_qcomm.lab.debug.rule import DebugRule
from trec_qcomm.lab.debug.tally import Tally, segment_squares
from trec_qcomm.lab.records import DebugRecord, Direction


class GradientDebugger:
    """Observer of the all-reduces of one DDP; see comm.dense.hooks.GradientObserver."""

    def __init__(
        self,
        rule: DebugRule,
        recorder: Recorder,
        direction: Direction,
        is_due: Callable[[int], bool],
        matches: Callable[[str], bool],
    ) -> None:
        """Prepare.

        Args:
            rule: what to measure.
            recorder: keeper of the records.
            direction: "dense" or "data_parallel".
            is_due: function that says whether a step is measured.
            matches: function that says whether a parameter is measured.
        """
        self.rule, self.recorder, self.direction = rule, recorder, direction
        self._is_due, self._matches = is_due, matches

    def matches(self, name: str) -> bool:
        """Return whether a parameter is measured, or the one of which this is a factor."""
        return self._matches(parameter_of(name))

    def begin(self, chunks: BucketChunks, step: int) -> "BucketDebugger | None":
        """Return an onlooker of one bucket, or None if this step is not measured."""
        return BucketDebugger(self, chunks, step) if self._is_due(step) else None


class BucketDebugger:
    """Onlooker of the all-reduce of one bucket; see comm.dense.hooks.GradientMeasurement."""

    def __init__(self, debugger: GradientDebugger, chunks: BucketChunks, step: int) -> None:
        self._debugger, self._chunks, self._step = debugger, chunks, step
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
        with self._debugger.recorder.timed(self._step):
            plan, parameters = span.placed.plan, self._chunks.names
            own_names = (parameters[p] for p in plan.table.tolist())
            names = [name if self._debugger.matches(name) else None for name in own_names]
            shadows = self._debugger.rule.shadow
            measurement = self._sent.setdefault(site, Measurement(shadows))
            for rows in pack(values, span.placed, seed=seed, tolerances=tolerances, names=names):
                is_coded = (rows.codec, rows.segments.dim) in self._coded
                measurement.add(rows, len(plan.segments_per_frame), with_shadows=is_coded)

    def kept(self, gradient: Tensor, residual: Tensor, span: ChunkSpan, site: str) -> None:
        """Measure what the codec kept back of coded values."""
        with self._debugger.recorder.timed(self._step):
            for piece in self._chunks.pieces:
                inside = span.begin <= piece.start < span.end and piece.coded
                if inside and self._debugger.matches(piece.name):
                    part = slice(piece.start - span.begin, piece.end - span.begin)
                    self._add_kept(gradient[part], residual[part], piece, site)

    def _add_kept(self, gradient: Tensor, residual: Tensor, piece: Piece, site: str) -> None:
        rows = residual.view(-1, self._chunks.parameters[piece.parameter].block)
        self._kept.setdefault((site, piece.name), Tally()).add(rows, rows)
        squares = self._squares(gradient)
        key = site, piece.name
        self._gradient_squares[key] = self._gradient_squares.get(key, 0.0) + squares

    @staticmethod
    def _squares(values: Tensor) -> float:
        """Return the sum of squares of the finite ones of [n] values."""
        return float(segment_squares(values, Segments.packed([1], len(values))))

    def end(self, values: Tensor) -> None:
        """Write the records of the bucket."""
        debugger = self._debugger
        with debugger.recorder.timed(self._step):
            means = dict.fromkeys(filter(debugger.matches, self._chunks.names), 0.0)
            for piece in self._chunks.pieces:
                if piece.name in means:
                    means[piece.name] += self._squares(values[piece.start : piece.end])
            debugger.recorder.add([*self._records_of_sent(means), *self._records_of_kept()])

    def _records_of_sent(self, means: dict[str, float]) -> list[DebugRecord]:
        made = []
        for site, measurement in self._sent.items():
            for key, figures in measurement.figures():
                squares = () if key.is_shadow else (means[key.name],)
                made.append(
                    self._debugger.recorder.record(
                        self._step, key.name, self._debugger.direction, key.codec, figures,
                        is_shadow=key.is_shadow, site=site, received_squares=squares,
                    )
                )  # fmt: skip
        return made

    def _records_of_kept(self) -> list[DebugRecord]:
        made = []
        for (site, name), tally in self._kept.items():
            figures, gradient = tally.figures_of_x(), self._gradient_squares[site, name]
            ratio = tally.norm() / math.sqrt(gradient) if gradient > 0 else None
            made.append(
                self._debugger.recorder.record(
                    self._step, name, "residual", repr(self._codecs[name]), figures, site=site,
                    residual_over_gradient=ratio,
                )
            )  # fmt: skip
        return made
