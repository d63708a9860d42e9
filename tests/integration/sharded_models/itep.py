"""In-training embedding pruning: tables that have half the rows that their ids need.

FBGEMM has its operators for CUDA only. `run_on_cpu` puts the two that come before the lookup in
their place, for stock sharders and ours alike: an id beyond the table shares the row of another.
The third, which prunes, is first called in the third step of training.
"""

import torch
from torch import Tensor, nn
from torchrec.modules.itep_embedding_modules import ITEPEmbeddingBagCollection
from torchrec.modules.itep_modules import GenericITEPModule

from tests.integration.sharded_models.cases import MODULES, Case, Model

MAX_STEPS = 2


def pruned_bags(case: Case) -> nn.Module:
    """Return the module of the key "itep_ebc" of cases.MODULES."""
    unpruned = {table.name: 2 * table.num_rows for table in case.tables}
    pruning = GenericITEPModule(table_name_to_unpruned_hash_sizes=unpruned)
    return ITEPEmbeddingBagCollection(MODULES["ebc"](case), pruning)


class PrunedModel(Model):
    """Model of a Case with pruned tables."""

    def __init__(self, case: Case) -> None:
        MODULES["itep_ebc"] = pruned_bags
        super().__init__(case)


def run_on_cpu() -> None:
    """Replace FBGEMM's operators in this process."""
    torch.ops.fbgemm.init_address_lookup = init_address_lookup
    torch.ops.fbgemm.remap_indices_update_utils = remap_indices


def init_address_lookup(address_lookup: Tensor, buffer_offsets: Tensor, emb_sizes: Tensor) -> None:
    """Write to address_lookup, [ids of all tables], the row of each id."""
    for begin, end, size in zip(buffer_offsets, buffer_offsets[1:], emb_sizes, strict=False):
        address_lookup[begin:end] = torch.arange(int(end - begin)) % size


def remap_indices(
    _iteration: int,
    buffer_idx: Tensor,
    feature_lengths: Tensor,
    feature_offsets: Tensor,
    values: Tensor,
    address_lookup: Tensor,
    _row_util: Tensor,
    buffer_offsets: Tensor,
    **_options: object,
) -> Tensor:
    """Return the row of each id of each feature. buffer_idx: the number of each feature's table."""
    rows = values.clone()
    for table, begin, length in zip(buffer_idx, feature_offsets, feature_lengths, strict=False):
        if table >= 0:
            ids = values[begin : begin + length]
            rows[begin : begin + length] = address_lookup[buffer_offsets[table] + ids]
    return rows
