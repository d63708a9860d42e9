"""sparsify_activation: keep only the largest values of an activation, as a pipeline stage sends it.

Source: Gupta et al. 2021 (DCT, model parallel). Only the most relevant neurons of each sample are
sent to the next stage, and in backward only their gradients. TorchRec's embeddings have this as the
codecs topk and forward_mask. This function does the same for any other activation.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trec_qcomm.core.codec import Codec
from trec_qcomm.core.segments import Segments
from trec_qcomm.ext.dct.codecs import ForwardMask, TopK
from trec_qcomm.ext.dct.masks import Masks


def sparsify_activation(
    values: Tensor, codec: TopK, *, backward: ForwardMask | None = None
) -> Tensor:
    """Return an activation with only the columns that `codec` keeps of each row; all others are 0.

    In backward the gradients of the same columns arrive, and 0 for all others. The columns need not
    be sent again. Values and gradients are encoded and decoded, so the codecs round them.
    `sparsified_nbytes` returns their bytes. This function sends nothing. A gradient of a gradient
    is an error.

    Args:
        values: [..., D] float32, on a CPU or a GPU; the last dimension is a row.
        codec: codec that chooses the columns of a row and rounds their values.
        backward: codec that rounds gradients; None: they are rounded as `codec` rounds values.
    Returns: [..., D] float32.
    Raises: ValueError: another dtype, no columns, or a codec that is no TopK.
    """
    if not isinstance(codec, TopK):
        raise ValueError(f"codec: {codec!r}: expected a TopK")
    if values.dtype != torch.float32 or values.dim() < 1 or not values.shape[-1]:
        raise ValueError(
            f"values: expected [..., D] float32, got {list(values.shape)} {values.dtype}"
        )
    masked = backward or ForwardMask(codec.values)
    result: Tensor = _Sparsify.apply(values, codec, masked)  # type: ignore[no-untyped-call]
    return result


def sparsified_nbytes(values: Tensor, codec: TopK, *, backward: ForwardMask | None = None) -> int:
    """Return the bytes of an activation that is sent, and of its gradients, without any header.

    The arguments are those of `sparsify_activation`.
    """
    segments = _segments(values)
    forward = int(_encode(codec, values.detach().contiguous(), segments)[1])
    masked = backward or ForwardMask(codec.values)
    return forward + int(_encode(masked, values.new_zeros(values.shape), segments)[1])


class _Sparsify(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, codec: TopK, backward: ForwardMask) -> Tensor:
        segments = _segments(values)
        ctx.segments, ctx.codec = segments, backward
        return _encode(codec, values.contiguous(), segments)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        return _encode(ctx.codec, gradient.contiguous(), ctx.segments)[0], None, None


def _segments(values: Tensor) -> Segments:
    """Return the rows of an activation as one segment, with memory for their masks."""
    num_rows, dim = values.shape[:-1].numel(), values.shape[-1]
    sizes = torch.tensor([num_rows]), torch.tensor([dim])
    masks = Masks.of_all_columns(*sizes, values.device)
    return Segments.packed([num_rows], dim).with_notes(masks)


def _encode(codec: Codec, values: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    """Return the decoded values, and the number of their bytes."""
    payload = values.new_empty(int(codec.max_nbytes(segments).sum()), dtype=torch.uint8)
    encoded = codec.encode(values, segments, payload, torch.zeros(1, dtype=torch.int64))
    out = values.new_empty(values.shape)
    codec.decode(encoded, segments, out)
    return out, encoded.nbytes.sum()
