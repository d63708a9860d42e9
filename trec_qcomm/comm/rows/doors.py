"""Doors of a collective of rows: interfaces of tolerances, transforms and observers.

A collective has at most one `Tolerances` and one `RowTransform`, and any number of observers. All
of them get the `Call` and never the collective.

Knows: placed frames. Does not know: what is behind a door.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.rows.exchange_plan import PlacedExchange
from trec_qcomm.core.counters import Traffic


@dataclass(frozen=True, eq=False)
class Call:
    """One direction of one call of a collective.

    Args:
        name: the collective's name: path of the module, sharding and hop.
        direction: "forward", or "backward" for the gradients of the rows.
        step: number of the training step, or of the evaluation, from 0 on.
        is_training: whether the call was made with gradients on.
        seed: seed of stochastic rounding, 0 <= seed < 2^63.
        tolerances: [T] float64 in the order of `Layout.tables`, one for each table. None: the
            codecs' own tolerances.
    """

    name: str
    direction: str
    step: int
    is_training: bool
    seed: int
    tolerances: Tensor | None = None

    @property
    def moment(self) -> str:
        """Step or evaluation with its number, in words."""
        return f"{'step' if self.is_training else 'evaluation'} {self.step}"


class Tolerances(Protocol):
    """Rule that sets the tolerances of one sender's forward codecs in each step.

    Dense gradients have another kind of rule, comm.dense.coder.GradientTolerances.
    """

    def observe(self, step: int, values: Tensor, placed: PlacedFrames) -> None:
        """Look at the rows of a training step before they are encoded.

        Args: step: number of the step.  values: buffer of the rows.  placed: the rows' places.
        """

    def tolerances(self, step: int) -> Tensor:
        """Return [T] float64, in the order of `Layout.tables`; NaN where a codec has none."""


class Observer:
    """Base of observers, who see the rows that a collective will send and has received.

    An observer must not write to these rows. Each method does nothing unless a subclass overrides
    it.
    """

    def before_encoding(self, call: Call, values: Tensor, placed: PlacedFrames) -> None:
        """Look at rows to send. Args: values: buffer of the rows.  placed: the rows' places."""

    def looks_at_received(self, call: Call) -> bool:
        """Return whether `after_decoding` is called; rows are then added up after decoding."""
        return False

    def after_decoding(self, call: Call, values: Tensor, placed: PlacedFrames) -> None:
        """Look at decoded rows, before they are added up or used. Args: as in `before_encoding`."""


@dataclass(eq=False)
class TransformedRows:
    """Rows of one exchange as a transform has changed them.

    A subclass may learn what receivers decode (`note`).

    Args:
        values: the rows to encode.
        decoded: memory of the same shape for the decoded rows; None: they are not needed.
    """

    values: Tensor
    decoded: Tensor | None = None

    @property
    def tensors(self) -> Sequence[Tensor]:
        """Tensors that `note` reads and writes, besides `values`."""
        return () if self.decoded is None else (self.decoded,)

    def note(self) -> None:
        """Learn what receivers decode, if there is memory for it (`decoded`)."""


class CallTransform:
    """Base of a transform's work in one call.

    Each method does nothing unless a subclass overrides it. The methods are called once for each
    direction, forward first.
    """

    def frames(
        self, direction: str, sent: PlacedFrames, received: PlacedFrames
    ) -> tuple[PlacedFrames, PlacedFrames]:
        """Return the frames to use in place of the given frames, with the same rows."""
        return sent, received

    def rows(
        self, direction: str, values: Tensor, sent: PlacedFrames, traffic: Traffic
    ) -> TransformedRows | None:
        """Return the rows to encode in place of `values`; None: `values` itself.

        Args: values: buffer of the rows.  sent: the rows' places.  traffic: the direction's
            counters.
        """
        return None


class RowTransform(Protocol):
    """Transform that changes a collective's rows before they are encoded, in training steps."""

    def begin(
        self, name: str, exchange: PlacedExchange, device: torch.device
    ) -> CallTransform | None:
        """Return the transform of the call that begins; None: the call is not transformed.

        Args:
            name: the collective's name.
            exchange: the frames of the call.
            device: device of the rows.
        Raises: ValueError: the call cannot be transformed.
        """
