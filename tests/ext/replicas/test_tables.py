"""Banks of models with unusual places of tables, and averages of them by played replicas."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import nn
from torchrec.distributed.itep_embeddingbag import ShardedITEPEmbeddingBagCollection
from torchrec.distributed.mc_modules import ShardedManagedCollisionCollection

from trec_qcomm import QComm
from trec_qcomm.ext.replicas.sync import ReplicaSync
from trec_qcomm.ext.replicas.tables import kernels_and_banks
from trec_qcomm.lab.ranks.ranks import PlayedRanks

INT4 = QComm.from_dict({"sync": {"codec": {"codec": "rowwise", "bits": 4}}})


def fused(num_rows: int = 6) -> SplitTableBatchedEmbeddingBagsCodegen:
    """Make a kernel of one table."""
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(num_rows, 8, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    )


def collection(*kernels: SplitTableBatchedEmbeddingBagsCodegen) -> nn.Module:
    """Make what of a sharded collection is looked at: lookups of kernels, each of a table "t"."""
    table = SimpleNamespace(name="t", local_metadata=None)
    wrapped = [
        SimpleNamespace(emb_module=k, config=SimpleNamespace(embedding_tables=[table]))
        for k in kernels
    ]
    module = nn.Module()
    module._lookups = [SimpleNamespace(_emb_modules=wrapped)]
    return module


def test_tables_of_a_collection_inside_another_are_in_one_bank():
    outer = collection(fused())
    outer.inner = nn.Module()
    outer.inner._lookups = outer._lookups
    kernels, banks = kernels_and_banks(outer)
    assert (len(kernels), len(banks)) == (1, 1)


def test_tables_with_one_name_have_shards_that_differ():
    _, banks = kernels_and_banks(nn.ModuleList([collection(fused()), collection(fused())]))
    assert [list(bank.tables) for bank in banks] == [["t"], ["t"]]
    assert [list(bank.shards) for bank in banks] == [["0.t"], ["1.t"]]


@pytest.mark.parametrize(
    "kind", [ShardedITEPEmbeddingBagCollection, ShardedManagedCollisionCollection]
)
def test_modules_that_map_ids_are_refused(kind):
    model = nn.Module()
    model.maps = kind.__new__(kind)
    nn.Module.__init__(model.maps)
    with pytest.raises(ValueError, match=f"maps: {kind.__name__}"):
        kernels_and_banks(model)


def run_twice(model: nn.Module) -> ReplicaSync:
    """Average whole tables, and then touched rows."""
    sync = ReplicaSync(model, dist.group.WORLD, INT4.config)
    sync.step()
    for kernel in model.modules():
        if isinstance(kernel, SplitTableBatchedEmbeddingBagsCodegen) and len(kernel.weights_host):
            ids = torch.tensor([1, 2 + dist.get_rank()])
            (kernel(ids, torch.tensor([0, 2])) * torch.arange(8)).sum().backward()
    sync.step()
    sync.check()
    return sync


@pytest.mark.parametrize("num_kernels", [0, 1])
def test_a_rank_without_rows_takes_part(num_kernels):
    def program():
        sync = run_twice(collection(*[fused(0)] * num_kernels))
        sync.load_state_dict(sync.state_dict())
        assert sync.stats().tables.keys() == ({"t"} if num_kernels else set())

    PlayedRanks(2).run(program)


def test_resend_forgets_residuals():
    def program():
        sync = run_twice(fused())
        residuals = sync._residuals().values()
        before = sum(kept._values.abs().sum() for kept in residuals)
        sync.resend()
        return float(before), [float(kept._values.abs().sum()) for kept in residuals]

    for before, after in PlayedRanks(2).run(program):
        assert before > 0
        assert not any(after)
