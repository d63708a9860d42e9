"""Batches of a Case, and the gradients of its linear loss: functions of step and rank.

Knows: Cases. Does not know: plans, codecs, world sizes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.integration.sharded_models.cases import Case, seeded


def batch(case: Case, step: int, rank: int) -> KeyedJaggedTensor:
    """Make bags of 0 to max_length ids, some twice; with managed collisions beyond the table."""
    if case.vbe:
        return vbe_batch(case, step, rank)
    generator = seeded("batch", step, rank)
    lengths = {f: _lengths(case, f, case.batch_size(rank), generator) for f in case.features}
    return _kjt(case, lengths, generator)


def vbe_batch(case: Case, step: int, rank: int) -> KeyedJaggedTensor:
    """Make a batch whose samples repeat the bags of a feature, of which each has its own number."""
    generator = seeded("vbe", step, rank)
    samples = case.batch_size(rank)
    turn = rank if case.uneven_vbe else 0
    distinct = {f: 1 + (n + turn) % 3 for n, f in enumerate(case.features)}
    lengths = {f: _lengths(case, f, distinct[f], generator) for f in case.features}
    inverse = [torch.randint(distinct[f], (samples,), generator=generator) for f in case.features]
    return _kjt(
        case,
        lengths,
        generator,
        stride_per_key_per_rank=[[distinct[f]] for f in case.features],
        inverse_indices=(list(case.features), torch.stack(inverse)),
    )


def _lengths(case: Case, feature: str, num_bags: int, generator: torch.Generator) -> Tensor:
    lengths = torch.randint(0, case.max_length + 1, (num_bags,), generator=generator)
    return lengths * (feature not in case.empty)


def _kjt(
    case: Case, lengths: dict[str, Tensor], generator: torch.Generator, **options: object
) -> KeyedJaggedTensor:
    limits = num_ids(case)
    values = [
        torch.randint(limits[f], (int(lengths[f].sum()),), generator=generator)
        for f in case.features
    ]
    total = sum(v.numel() for v in values)
    weights = torch.rand(total, generator=generator) + 0.5
    return KeyedJaggedTensor(
        list(case.features),
        torch.cat(values),
        lengths=torch.cat([lengths[f] for f in case.features]).to(torch.int32),
        weights=weights if case.weighted or case.module == "fp_ebc" else None,
        **options,
    )


def num_ids(case: Case) -> dict[str, int]:
    """Return for each feature the rows of its smallest table; more where ids are mapped to rows."""
    if case.module.startswith("mc_"):
        return dict.fromkeys(case.features, 1000)
    rows = {f: min(t.num_rows for t in case.tables if f in t.features) for f in case.features}
    return {f: 2 * n for f, n in rows.items()} if case.module == "itep_ebc" else rows


def coefficients(case: Case, step: int, rank: int, key: str, shape: Sequence[int]) -> Tensor:
    """Return the gradient of a linear loss by an output, which does not depend on weights."""
    widths = 1.0 + torch.arange(shape[0])[:, None] % 3
    values = torch.randn(shape, generator=seeded("loss", step, rank, key)) * widths
    return (4 * values).round() if case.whole_gradients else values
