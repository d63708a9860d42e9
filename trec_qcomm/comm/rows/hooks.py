"""What a collective of rows calls beside its work: transforms, observers, tolerances, refused rows.

Knows: placed frames. Does not know: what they do with the rows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.core.errors import UnencodableError

if TYPE_CHECKING:
    from trec_qcomm.comm.rows.collective import RowCollective
    from trec_qcomm.comm.rows.exchange_plan import ExchangePlan


class TransformedRows(Protocol):
    """Rows of one exchange as a transform has changed them.

    Attributes:
        values: the rows to encode.
        decoded: memory for what they are decoded to.
        tensors: all tensors that `note` reads and writes, besides `values`.
    """

    values: Tensor
    decoded: Tensor

    @property
    def tensors(self) -> Sequence[Tensor]:
        """Tensors that `note` reads and writes."""
        ...

    def note(self) -> None:
        """Learn what was decoded. Called when `decoded` holds what the peers will decode."""
        ...


class RowTransform(Protocol):
    """Thing that changes the rows of one direction before they are encoded, in training steps."""

    def check_context(self, context: object, name: str) -> None:
        """Raise ValueError where a call cannot be transformed.

        Args: context: what was set as the collective's `context` before the call; None where
            nothing was.  name: name of the collective, for the error.
        """
        ...

    def apply(self, values: Tensor, placed: PlacedFrames, context: Any) -> TransformedRows:
        """Return the rows to encode. Args: values: buffer of the rows.  placed: their places."""
        ...

    def num_evicted(self) -> dict[str, int]:
        """Return {table: what was dropped since `reset`}. Waits for a GPU."""
        ...

    def reset(self) -> None:
        """Set the counts of `num_evicted` to zero."""
        ...

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return what a resumed run needs, by table."""
        ...

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue from a `state_dict`, which may lack tables."""
        ...


MakeTransforms = Callable[["ExchangePlan", str], Mapping[str, RowTransform]]
"""Function of the plan and the collective's name that returns {direction: transform}."""


class RowTolerances(Protocol):
    """Rule that sets the tolerances of one sender's forward codecs, step by step.

    Gradients have a rule of another shape, see comm.dense.coder.GradientTolerances.
    """

    def observe(self, step: int, values: Tensor, placed: PlacedFrames) -> None:
        """Look at the rows of a training step before they are encoded.

        Args: step: number of the step.  values: buffer of the rows.  placed: the rows' places.
        """
        ...

    def tolerances(self, step: int) -> Tensor:
        """Return [T] float64, in the order of `Layout.tables`; NaN where a codec has none."""
        ...


class RowRefusals(Protocol):
    """Counter of rows that a codec refused, and that were sent exactly in its place."""

    def refused(
        self, collective: "RowCollective", direction: str, step: int, error: UnencodableError
    ) -> None:
        """Take note of a table some of whose rows are about to be sent exactly.

        Args: error: the codec's error.  The others: as of `RowObserver.observe`.
        Raises: UnencodableError: the same error, where the table is not to be sent exactly.
        """
        ...


class RowObserver(Protocol):
    """Onlooker that is shown what a collective is about to send, and what it has received.

    It may write to none of it. A collective may have several.
    """

    def observe(
        self,
        collective: "RowCollective",
        direction: str,
        step: int,
        values: Tensor,
        placed: PlacedFrames,
        *,
        seed: int,
        tolerances: Tensor | None,
    ) -> None:
        """Look at rows before they are encoded.

        Args:
            collective: the collective that sends them.
            direction: "forward", or "backward" for their gradients.
            step: number of the step, negative in evaluation.
            values: buffer of the rows.
            placed: the rows' places.
            seed, tolerances: arguments that they will be encoded with, see encode_frames.
        """
        ...

    def looks_at_received(self, step: int) -> bool:
        """Return whether to call `observe_received` in a step. Args: step: see `observe`."""
        ...

    def observe_received(
        self,
        collective: "RowCollective",
        direction: str,
        step: int,
        values: Tensor,
        placed: PlacedFrames,
    ) -> None:
        """Look at rows that were decoded, before they are added up or used.

        Args: values: buffer of the rows.  placed: the rows' places.  The others: as of `observe`.
        """
        ...
