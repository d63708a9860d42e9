"""What an all-reduce of gradients shows an onlooker: what it sends, keeps back and ends with.

Knows: chunks of buckets. Does not know: what is done with the values.
Shapes: E values of a bucket of P parameters.
"""

from typing import Protocol

from torch import Tensor

from trec_qcomm.comm.dense.chunks import BucketChunks, ChunkSpan


class GradientMeasurement(Protocol):
    """Onlooker of the all-reduce of one bucket. It may write to nothing that it is shown."""

    def sent(
        self, values: Tensor, span: ChunkSpan, site: str, *, seed: int, tolerances: Tensor | None
    ) -> None:
        """Look at values before they are encoded.

        Args:
            values: [E] float32, with the residual.
            span: the part that is sent.
            site: the place of the algorithm that encodes, see error_feedback.
            seed, tolerances: arguments that they will be encoded with, see encode_frames.
        """
        ...

    def kept(self, gradient: Tensor, residual: Tensor, span: ChunkSpan, site: str) -> None:
        """Look at what the codec kept back.

        Args:
            gradient: [numel of the span] float32, what was to be sent before the residual was
                added to it.
            residual: [numel of the span] float32, what will be added to the next step's values.
            span, site: arguments of `sent`.
        """
        ...

    def end(self, values: Tensor) -> None:
        """Look at the mean over ranks. Args: values: [E] float32, in the order of the chunks."""
        ...


class GradientObserver(Protocol):
    """Onlooker of the all-reduces of one DDP."""

    def begin(self, chunks: BucketChunks, step: int) -> GradientMeasurement | None:
        """Return an onlooker of one bucket, or None if this step is not looked at.

        Args: chunks: the bucket's chunks.  step: number of the step.
        """
        ...
