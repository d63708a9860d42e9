"""sparsify_activation between two pipeline stages, against autograd with a mask by hand.

Knows: a two-stage model. Does not know: papers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from examples.papers.measurements import Values
from trec_qcomm import TopK, sparsified_nbytes, sparsify_activation

BATCH, DIM = 512, 128
DENSITIES = (0.5, 0.1, 0.05)
SETTING = f"two stages of Linear and ReLU, {BATCH} samples, {DIM} neurons"


def cases(num_seeds: int) -> Mapping[str, Callable[[], Values]]:
    """Return the measurements by density of what is kept."""
    return {f"{density:g}": partial(measured, density, num_seeds) for density in DENSITIES}


def measured(density: float, num_seeds: int) -> Values:
    """Return how far loss and gradients are from those by hand, and times fewer bytes in fp16."""
    differences, ratios = [], []
    for seed in range(num_seeds):
        torch.manual_seed(seed)
        stages = nn.Linear(DIM, DIM), nn.Linear(DIM, 1)
        inputs, exact = torch.randn(BATCH, DIM), TopK(density, values="fp32")
        ours = _gradients(stages, inputs, lambda x: sparsify_activation(x, exact))  # noqa: B023
        by_hand = _gradients(stages, inputs, lambda x: x * _mask(x, exact))  # noqa: B023
        pairs = zip(ours, by_hand, strict=True)
        differences.append(max(float((a - b).abs().max()) for a, b in pairs))
        activation = stages[0](inputs).relu()
        raw = 2 * activation.numel() * activation.element_size()  # there and back
        ratios.append(raw / sparsified_nbytes(activation, TopK(density, values="fp16")))
    return {"difference": max(differences), "ratio": sum(ratios) / len(ratios)}


def _gradients(
    stages: tuple[nn.Linear, nn.Linear], inputs: Tensor, sent: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Return the loss, and its gradients for both stages."""
    loss = stages[1](sent(stages[0](inputs).relu())).square().mean()
    parameters = [parameter for stage in stages for parameter in stage.parameters()]
    return [loss.detach(), *torch.autograd.grad(loss, parameters)]


def _mask(values: Tensor, codec: TopK) -> Tensor:
    order = values.detach().abs().argsort(dim=-1, descending=True, stable=True)
    kept = order[..., : codec.top_k(values.shape[-1])]
    return torch.zeros_like(values).scatter(-1, kept, 1.0)
