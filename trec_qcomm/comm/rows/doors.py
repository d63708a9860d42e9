"""Doors of a collective of rows: what tolerances, transforms and observers are given and may do.

A collective has at most one `Tolerances` and one `RowTransform`, and any number of observers. All
of them see calls by their `Call` and never the collective.

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
        seed: what stochastic rounding is drawn from, 0 <= seed < 2^63.
        tolerances: [T] float64 in the order of `Layout.tables`, the codecs' tolerances; None:
            their own.
    """

    name: str
    direction: str
    step: int
    is_training: bool
    seed: int
    tolerances: Tensor | None = None

    @property
    def moment(self) -> str:
        """Number of the step or evaluation, in words."""
        return f"{'step' if self.is_training else 'evaluation'} {self.step}"


class Tolerances(Protocol):
    """Rule that sets the tolerances of one sender's forward codecs, step by step.

    Gradients have a rule of another shape, see comm.dense.coder.GradientTolerances.
    """

    def observe(self, step: int, values: Tensor, placed: PlacedFrames) -> None:
        """Look at the rows of a training step before they are encoded.

        Args: step: number of the step.  values: buffer of the rows.  placed: the rows' places.
        """

    def tolerances(self, step: int) -> Tensor:
        """Return [T] float64, in the order of `Layout.tables`; NaN where a codec has none."""


class Observer:
    """Base of onlookers, who see what a collective is about to send and what it has received.

    An observer may write to none of it. Each method does nothing unless a subclass has it.
    """

    def before_encoding(self, call: Call, values: Tensor, placed: PlacedFrames) -> None:
        """Look at rows. Args: values: buffer of the rows.  placed: the rows' places."""

    def looks_at_received(self, call: Call) -> bool:
        """Return whether `after_decoding` is to be called; sums are then taken apart for it."""
        return False

    def after_decoding(self, call: Call, values: Tensor, placed: PlacedFrames) -> None:
        """Look at decoded rows, before they are added up or used; see `before_encoding`."""


@dataclass(eq=False)
class TransformedRows:
    """Rows of one exchange as a transform has changed them; base of what learns what was decoded.

    Args:
        values: the rows to encode.
        decoded: memory of the same shape for what they are decoded to; None: nobody asks.
    """

    values: Tensor
    decoded: Tensor | None = None

    @property
    def tensors(self) -> Sequence[Tensor]:
        """All tensors that `note` reads and writes, besides `values`."""
        return () if self.decoded is None else (self.decoded,)

    def note(self) -> None:
        """Learn what was decoded, if there is memory for it."""


class CallTransform:
    """Base of what a transform does in one call; each method does nothing unless a subclass has it.

    Its methods are called once for each direction, forward first.
    """

    def frames(
        self, direction: str, sent: PlacedFrames, received: PlacedFrames
    ) -> tuple[PlacedFrames, PlacedFrames]:
        """Return the frames to use in place of these, with the same rows."""
        return sent, received

    def rows(
        self, direction: str, values: Tensor, sent: PlacedFrames, traffic: Traffic
    ) -> TransformedRows | None:
        """Return the rows to encode in place of `values`; None: these.

        Args: values: buffer of the rows.  sent: the rows' places.  traffic: the direction's
            counters.
        """
        return None

    def end(self, direction: str) -> None:
        """Take note that the exchange has ended and that its rows are decoded."""


class RowTransform(Protocol):
    """Thing that changes the rows of a collective before they are encoded, in training steps."""

    def begin(
        self, name: str, exchange: PlacedExchange, device: torch.device
    ) -> CallTransform | None:
        """Return what to do in the call that begins; None: nothing.

        Args:
            name: the collective's name.
            exchange: the frames of the call.
            device: where the rows lie.
        Raises: ValueError: the call cannot be transformed.
        """
