"""RowTolerances: the rule that sets error bounds and thresholds of rows while training."""

from typing import Protocol

from torch import Tensor

from trec_qcomm.comm.frame_plan import PlacedFrames


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
