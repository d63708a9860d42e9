"""Lookups that give FP16 or BF16 (`output_dtype`): rows and gradients are sent as they are.

FBGEMM's lookups for CPU give FP16 and not BF16. So those of BF16 are played: the rows of stock
TorchRec and ours become BF16 where they leave the lookup.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import SparseType
from torchrec.distributed.embedding_lookup import (
    GroupedEmbeddingsLookup,
    GroupedPooledEmbeddingsLookup,
)
from torchrec.distributed.embedding_types import EmbeddingComputeKernel

from tests.integration.sharded_models import cases
from tests.integration.sharded_models.cases import CW, DP, GRID, RW, TW, TWRW, Case, Model, Table
from tests.integration.sharded_models.training import assert_same, qcomm_of, run
from trec_qcomm import ErrorBounded, Identity, QComm
from trec_qcomm.config import read_config
from trec_qcomm.integration.embedding import modules, shardings
from trec_qcomm.testing import run_ranks

TABLES = tuple(Table(f"t{n}", 16 if n % 2 else 8, (f"f{n}",)) for n in range(4))  # one a rank
ROWS = tuple(Table(f"t{n}", 8, (f"f{n}",)) for n in range(4))
FP16 = (("output_dtype", SparseType.FP16),)
UNEVEN = Case(tables=TABLES, sharding=TW, batch=(4, 3))
BAGS, SEQUENCES = Case(tables=TABLES, sharding=""), Case(tables=ROWS, sharding="", module="ec")
NODES = replace(BAGS, node_size=2)
CASES = {  # by world size
    2: {
        "fp16": [*(replace(BAGS, sharding=kind) for kind in (RW, "with_replicas")), UNEVEN,
                 replace(SEQUENCES, sharding=TW)],
        "bf16": [replace(BAGS, sharding=RW), replace(SEQUENCES, sharding=CW)],
    },
    4: {
        "fp16": [*(replace(NODES, sharding=kind) for kind in (TWRW, GRID)),
                 replace(SEQUENCES, sharding=RW)],
        "bf16": [replace(BAGS, sharding=TW), replace(BAGS, sharding=RW)],
    },
}  # fmt: skip
STEPS = 2


class Observed(Model):
    """Model that notes the dtypes of its rows."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.dtypes: set[torch.dtype] = set()

    def scaled(self, rows):
        self.dtypes |= {of_key.dtype for of_key in rows.values()}
        return super().scaled(rows)


@contextmanager
def bfloat16_lookups() -> Iterator[None]:
    """Let the lookups of all shardings give BF16, and ours know it."""

    def bfloat16(forward):
        return lambda self, features: forward(self, features).to(torch.bfloat16)

    with ExitStack() as stack:
        for lookup in (GroupedPooledEmbeddingsLookup, GroupedEmbeddingsLookup):
            stack.enter_context(patch.object(lookup, "forward", bfloat16(lookup.forward)))
        for module in (shardings, modules):
            stack.enter_context(patch.object(module, "rows_dtype", lambda *_: torch.bfloat16))
        yield


def stock_and_identity():
    results = []
    for dtype, chosen in CASES[dist.get_world_size()].items():
        for case in chosen:
            asked = replace(case, fused_params=FP16 if dtype == "fp16" else ())
            with bfloat16_lookups() if dtype == "bf16" else nullcontext():
                models = Observed(asked), Observed(asked)
                theirs = run(asked, None, STEPS, model=models[0])
                ours = run(asked, qcomm_of(Identity()), STEPS, model=models[1])
            results.append((dtype, case, [m.dtypes for m in models], theirs, ours))
    return results


def other_codings():
    """Return what else is sent: outputs and bytes, of a table-wise sharding."""
    case, results = replace(UNEVEN, fused_params=FP16), {}
    float32 = run(UNEVEN, qcomm_of(Identity()), STEPS)
    for name, config in {
        "identity": qcomm_of(Identity(), measure_error=True).config,
        "fp16_bf16": read_config("fp16_bf16"),
        "rans": qcomm_of(ErrorBounded(0.01, encoder="rans")).config,
    }.items():
        results[name] = run(case, QComm(config), STEPS)
    return results | {"float32": float32, "stock": run(case, None, STEPS)}


@patch.dict(cases.MIXES, {"with_replicas": (TW, TW, RW, DP)})
def everything():
    return stock_and_identity(), other_codings() if dist.get_world_size() == 2 else {}


@cache
def results_of(world_size):
    return run_ranks(everything, world_size)


@pytest.mark.dist
@pytest.mark.parametrize("world_size", CASES)
def test_identity_equals_stock_bit_for_bit(world_size):
    ranks = results_of(world_size)
    for runs in zip(*(results for results, _ in ranks), strict=True):
        dtype, case = runs[0][:2]
        assert_same(case, [theirs for *_, theirs, _ in runs], [ours for *_, ours in runs])
        expected = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
        if case.sharding == "with_replicas":  # TorchRec joins them to rows that are float32
            expected = torch.float32
        assert [dtypes for run in runs for dtypes in run[2]] == 2 * len(runs) * [{expected}], case


def test_lookups_of_a_gpu_may_give_bf16():
    options = {"fused_params": {"output_dtype": SparseType.BF16}, "embedding_tables": TABLES}
    group = SimpleNamespace(compute_kernel=EmbeddingComputeKernel.FUSED, **options)
    assert shardings.rows_dtype([[group]], torch.device("cuda")) == torch.bfloat16


@pytest.mark.dist
def test_messages_have_two_bytes_a_value():
    for _, others in results_of(2):
        for kind in ("embedding_forward", "embedding_backward"):
            whole, half = (others[name].stats[kind] for name in ("float32", "identity"))
            assert half["raw_nbytes"] * 2 == whole["raw_nbytes"] > 0
            payload = half["wire_nbytes"] - half["header_nbytes"]
            assert half["raw_nbytes"] <= payload < half["raw_nbytes"] + 8 * STEPS * len(TABLES)
            assert others["fp16_bf16"].stats[kind]["wire_nbytes"] == half["wire_nbytes"]


@pytest.mark.dist
def test_codecs_of_16_bits_train():
    case, ranks = UNEVEN, results_of(2)
    theirs = [others["stock"] for _, others in ranks]
    assert_same(case, theirs, [others["identity"] for _, others in ranks])
    owner = ranks[0][1]["identity"].stats["embedding_forward"]["tables"]["t0"]
    assert owner["max_abs_err"] == 0
    for (_, others), stock in zip(ranks, theirs, strict=True):
        for key, exact in stock.outputs[0].items():
            assert torch.equal(others["fp16_bf16"].outputs[0][key], exact)  # FP16 sent as FP16
        for key, exact in stock.outputs[-1].items():  # after gradients that lost 3 bits
            coded = others["fp16_bf16"].outputs[-1][key]
            torch.testing.assert_close(coded, exact, rtol=2**-5, atol=2**-4)
        for key, exact in stock.outputs[0].items():
            bound = 0.01 * float(exact.max() - exact.min()) + 2**-11 * float(exact.abs().max())
            error = (others["rans"].outputs[0][key] - exact).abs().max()
            assert 0 < error <= bound
