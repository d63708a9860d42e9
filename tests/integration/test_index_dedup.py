"""EmbeddingCollection and its managed collision kin with use_index_dedup: equal to stock.

With the identity codec ids are packed, too.
"""

import pytest
import torch
from torch import Tensor

from tests.integration.sharded_models.cases import CW, RW, TW, Case, Table
from tests.integration.sharded_models.training import assert_same, qcomm_of, run
from trec_qcomm import Identity, Rowwise
from trec_qcomm.config import IdRule
from trec_qcomm.testing import run_ranks

TABLES = (
    Table("a", 16, ("f1",), 8),
    Table("b", 16, ("f2", "f3"), 11),  # one table, two features: their ids are made distinct as one
    Table("c", 16, ("f4",), 13),
)
CASES = {
    f"{module} {sharding}": Case(
        tables=TABLES, sharding=sharding, module=module, dedup=True, batch=(8, 3)
    )
    for module, shardings in (("ec", (TW, CW, RW)), ("mc_ec", (RW,)))
    for sharding in shardings
}


def jagged_unique_indices(
    hash_size_cumsum: Tensor, hash_size_offsets: Tensor, offsets: Tensor, indices: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Find the distinct ids of each table, over all its features.

    Their number is spread over the table's bags.

    Args:    hash_size_cumsum: [F + 1], equal for features of one table.  hash_size_offsets:
             [F + 1], the features of each table.  offsets: [F * B + 1], B > 0.  indices: [N].
    Returns: lengths: [F * B].  offsets: [F * B + 1].  unique ids: [U].  inverse: [N].
    """
    bags_per_feature = (offsets.numel() - 1) // (hash_size_cumsum.numel() - 1)
    low = torch.repeat_interleave(hash_size_cumsum[:-1], offsets[::bags_per_feature].diff())
    linear, inverse = torch.unique(indices + low, return_inverse=True)
    lengths = torch.zeros(offsets.numel() - 1, dtype=offsets.dtype)
    unique = linear.clone()
    for begin, end in zip(hash_size_offsets.tolist(), hash_size_offsets[1:].tolist(), strict=False):
        if begin == end:
            continue
        first, last = hash_size_cumsum[begin], hash_size_cumsum[end]
        inside = (linear >= first) & (linear < last)
        unique[inside] -= first
        each, rest = divmod(int(inside.sum()), (end - begin) * bags_per_feature)
        spread = lengths[begin * bags_per_feature : end * bags_per_feature]
        spread.fill_(each)
        spread[:rest] += 1
    ends = torch.zeros(offsets.numel(), dtype=offsets.dtype)
    torch.cumsum(lengths, 0, out=ends[1:])
    return lengths, ends, unique, inverse


def register_unique_indices() -> None:
    """Register the operator of use_index_dedup for CPU; FBGEMM has it for CUDA only."""
    name = "fbgemm::jagged_unique_indices"
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
        torch.library.impl(name, "CPU")(jagged_unique_indices)


def all_runs():
    register_unique_indices()
    return {
        name: {
            "stock": run(case, None),
            "identity": run(case, qcomm_of(Identity(), ids=IdRule(codec="packed"))),
            "int4": run(case, qcomm_of(Rowwise(4))),
        }
        for name, case in CASES.items()
    }


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(all_runs, 2, timeout_s=240)


@pytest.mark.dist
@pytest.mark.parametrize("name", CASES)
def test_identity_equals_stock(ranks, name):
    stock, ours = ([r[name][kind] for r in ranks] for kind in ("stock", "identity"))
    assert_same(CASES[name], stock, ours)


@pytest.mark.dist
@pytest.mark.parametrize("name", CASES)
def test_int4_is_coded(ranks, name):
    for results in ranks:
        first, other = (results[name][kind].outputs[0] for kind in ("identity", "int4"))
        assert any(not torch.equal(first[key], other[key]) for key in first)
