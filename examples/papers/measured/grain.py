"""Error of 4-bit quantization by its grain: how many values share a scale.

Knows: codecs, gradients of a DLRM. Does not know: papers.
Error: the root mean square of what decoding changes, over that of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from examples.papers.measured.gradients import Backward, backward_of_batches
from examples.papers.measurements import Values
from trec_qcomm import Rowwise, Segments

GRAINS = ("row", "32", "64", "128", "tensor")
KINDS = ("dense gradients", "rows", "row gradients")
BITS = 4


def cases(num_seeds: int) -> Mapping[str, Callable[[], Values]]:
    """Return the measurements by name, `rows, 32`: errors by seed, and bytes a value."""
    return {
        f"{kind}, {grain}": partial(_errors, kind, grain, num_seeds)
        for kind in KINDS
        for grain in GRAINS
    }


def _errors(kind: str, grain: str, num_seeds: int) -> Values:
    values: dict[str, float] = {}
    for seed in range(num_seeds):
        (made,) = backward_of_batches(1, seed)
        coded = [coded_by(tensor, grain) for tensor in _matrices(made, kind)]
        lost = sum(float((out - x).double().square().sum()) for x, out, _ in coded)
        power = sum(float(x.double().square().sum()) for x, _, _ in coded)
        values[f"seed {seed}"] = (lost / power) ** 0.5
        values["bytes a value"] = sum(n for *_, n in coded) / sum(x.numel() for x, *_ in coded)
    return values


def _matrices(made: Backward, kind: str) -> list[Tensor]:
    """Return what is quantized, [rows, columns] each; of rows a matrix for each table."""
    if kind == "dense gradients":
        return [gradient for gradient in made.dense.values() if gradient.dim() == 2]
    tensor = made.rows if kind == "rows" else made.row_gradients
    return list(tensor.transpose(0, 1).contiguous())


def coded_by(matrix: Tensor, grain: str) -> tuple[Tensor, Tensor, int]:
    """Return values, the same decoded, and the bytes, of a matrix coded in blocks of a grain.

    Args:
        matrix: [R, C] float32.
        grain: "row", "tensor", or the number of adjacent values in a block; what is left over
            behind the last whole block is not coded, and not among the values.
    """
    block = {"row": matrix.shape[1], "tensor": matrix.numel()}.get(grain) or int(grain)
    num_blocks = matrix.numel() // block
    values = matrix.reshape(-1)[: num_blocks * block].contiguous()
    codec, segments = Rowwise(BITS), Segments.packed([num_blocks], block)
    payload = torch.empty(int(codec.max_nbytes(segments).sum()), dtype=torch.uint8)
    encoded = codec.encode(values, segments, payload, torch.zeros(1, dtype=torch.int64))
    out = torch.empty_like(values)
    codec.decode(encoded, segments, out)
    return values, out, len(payload)
