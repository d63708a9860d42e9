"""Debugger: measures what codecs do to tables and gradients, in some steps of a training.

It looks at values before they are encoded, encodes them once more into memory of its own, and looks
at what was received before it is used. It sends nothing, draws no noise and changes no state, so a
training goes on bit by bit as without it. On a GPU a measured step waits for the device.

Knows: collectives of rows, all-reduces of gradients, rules. Does not know: TorchRec.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from trec_qcomm.comm.frames.plan import FramePlan, PlacedFrames
from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.core.codec import check_dim
from trec_qcomm.integration.gradients.all_reduce import GradientAllReduce
from trec_qcomm.lab.debug.coding import pack
from trec_qcomm.lab.debug.gradients import GradientDebugger
from trec_qcomm.lab.debug.measurement import Measurement, received_squares
from trec_qcomm.lab.debug.recorder import Recorder
from trec_qcomm.lab.debug.rule import DebugRule
from trec_qcomm.lab.debug.summary import summary
from trec_qcomm.lab.records import DebugRecord, Direction, Scalar

Call = tuple[RowCollective, str, int]  # with direction and step


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
        setup: Mapping[str, Scalar] | None = None,
        from_first_step: bool = False,
    ) -> None:
        """Prepare; the collectives call it from then on.

        Args:
            rule: what to measure.
            configuration: name of the configuration, for the records.
            seed: the config's seed.
            setup: all that must be equal for two runs to be compared, for the records.
            from_first_step: whether steps are counted from the first one that is seen, not from 0.
        """
        self.rule = rule
        self.recorder = Recorder(
            configuration=configuration, folder=rule.folder, setup=setup or {}, seed=seed
        )
        self._first: int | None = None if from_first_step else 0
        self._matches: dict[str, bool] = {}
        self._waiting: dict[Call, list[DebugRecord]] = {}  # for what is received
        self._modules: dict[RowCollective, str] = {}

    @property
    def records(self) -> list[DebugRecord]:
        """The latest records of this rank, in order."""
        return list(self.recorder.latest)

    def summary(self) -> str:
        """Return what stands out in the latest records, and what to do about it, as text."""
        return summary(self.records, self.recorder.cost())

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
        self._modules[collective] = module
        if self not in collective.observers:
            collective.observers += (self,)

    def remove(self, collective: RowCollective) -> None:
        """Observe a collective no more."""
        collective.observers = tuple(o for o in collective.observers if o is not self)

    def watch(self, gradients: GradientAllReduce, direction: Direction) -> None:
        """Observe the all-reduce of a DDP that was registered.

        Args: direction: "dense" or "data_parallel".
        Raises: ValueError: a shadow does not take blocks of such a length.
        """
        for shape in gradients.shapes:
            if self.matches(shape.name):
                self.check_dim(shape.block, f"block of {shape.name!r}")
        arguments = self.rule, self.recorder, direction, self.is_due, self.matches
        gradients.set_observer(GradientDebugger(*arguments))

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
        """Return whether a step is measured. Evaluation (step < 0) is not."""
        if step < 0:
            return False
        if self._first is None:
            self._first = step
        return (step - self._first) % self.rule.every == 0

    def observe(
        self,
        collective: RowCollective,
        direction: str,
        step: int,
        values: Tensor,
        placed: PlacedFrames,
        *,
        seed: int,
        tolerances: Tensor | None,
    ) -> None:
        """Measure rows that are about to be sent; their records wait for what is received."""
        if not self.is_due(step):
            return
        with self.recorder.timed(step):
            plan = placed.plan
            measurement = Measurement(self.rule.shadow)
            names = self._names(plan)
            for rows in pack(values, placed, seed=seed, tolerances=tolerances, names=names):
                measurement.add(rows, len(plan.segments_per_frame))
            self._waiting[collective, direction, step] = self._records(
                collective, direction, step, measurement, plan.fan_out
            )

    def _records(
        self,
        collective: RowCollective,
        direction: str,
        step: int,
        measurement: Measurement,
        fan_out: int,
    ) -> list[DebugRecord]:
        named = direction_of(collective, direction)
        module, squares = self._modules[collective], measurement.sent_squares
        made = []
        for key, figures in measurement.figures():
            sent: dict[str, tuple[float | int, ...]] = {}
            if not key.is_shadow:
                sent["peers"] = collective.peers.ranks
                sent["sent_squares"] = tuple(squares[key.name] * fan_out)
            made.append(
                self.recorder.record(
                    step, key.name, named, key.codec, figures,
                    is_shadow=key.is_shadow, module=module, **sent,
                )
            )  # fmt: skip
        return made

    def looks_at_received(self, step: int) -> bool:
        """Return whether a step is measured."""
        return self.is_due(step)

    def observe_received(
        self,
        collective: RowCollective,
        direction: str,
        step: int,
        values: Tensor,
        placed: PlacedFrames,
    ) -> None:
        """Add to the records what was received, and write them."""
        with self.recorder.timed(step):
            plan = placed.plan
            squares = received_squares(values, placed, self._names(plan))
            done = []
            for record in self._waiting.pop((collective, direction, step), []):
                if not record.is_shadow and record.name in squares:
                    came = tuple(squares.pop(record.name))
                    record = replace(record, received_squares=came)
                done.append(record)
            codecs = {plan.tables[int(s)]: c for c, _, members in plan.groups for s in members}
            for name, came_alone in squares.items():
                done.append(
                    self.recorder.record(
                        step, name, direction_of(collective, direction), repr(codecs[name]), {},
                        module=self._modules[collective], peers=collective.peers.ranks,
                        received_squares=tuple(came_alone),
                    )
                )  # fmt: skip
            self.recorder.add(done)

    def _names(self, plan: FramePlan) -> list[str | None]:
        return [table if self.matches(table) else None for table in plan.tables]

    def close(self) -> None:
        """Write the records of exchanges whose end was not seen."""
        for waiting in self._waiting.values():
            self.recorder.add(waiting)
        self._waiting.clear()


def direction_of(collective: RowCollective, direction: str) -> Direction:
    """Return the direction of a record: that of the exchange, and whether it is inside a node."""
    return cast(Direction, f"intra_{direction}" if collective.intra else direction)
