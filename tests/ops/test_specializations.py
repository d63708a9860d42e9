"""A batch of another size compiles no kernel anew, which would stop all ranks in mid-training.

For a GPU, Triton compiles a kernel for each type and constant, for integers that are 1, and for
integers and addresses that are multiples of 16. Launches are those of a dry run, which computes
nothing.
"""

from collections import defaultdict
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.ops.record_launches import CODECS, unspecialized_arguments
from tests.virtual.dry_run import GPU, DryRun, dry_run
from trec_qcomm.codecs import Rowwise
from trec_qcomm.core.checks import DeferredChecks, deferring
from trec_qcomm.core.codec import SummingCodec
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ext.dct.masks import Masks
from trec_qcomm.ops.batch.rank_sum import rank_sum
from trec_qcomm.ops.batch.unique import BagBlocks, expand, sum_by_bag, take_bags, unique_bags

SIZES = (2048, 2051, 33, 16, 1)  # rows of a segment, and samples of a batch
# What sizes do change, by kernel or module of kernels: for short segments, and for those whose rows
# do not begin at multiples of 4 values. The forms are few, and long even segments have one.
KNOWN = {
    "error_bound.gpu.encode_bitpack.lay_out_bitpack": {"BLOCK"},
    "error_bound.gpu.encode_rans.lay_out_rans": {"BLOCK"},
    "rank_sum.gpu._rank_sum": {"VECTOR"},
}


class Launches(DryRun):
    """Dry run that notes by kernel and argument what Triton would specialize it for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[str, str], set[object]] = defaultdict(set)

    def launch(self, executor, *args: object, **options: object) -> None:
        super().launch(executor, *args, **options)
        given = dict(zip(executor.arg_names, args, strict=False)) | options
        kernel = f"{executor.fn.__module__}.{executor.fn.__name__}"
        for name in executor.arg_names:
            short = kernel.removeprefix("trec_qcomm.").removeprefix("ops.")
            key = short.removeprefix("batch."), name
            self.seen[key].add(special(given[name], executor, name))


def special(value: object, executor, name: str) -> object:
    if isinstance(value, Tensor):
        return value.dtype, value.storage_offset() * value.element_size() % 16 == 0
    if type(value) is not int or name in executor.constexprs:
        return value
    is_long = not -(2**31) <= value < 2**31
    free = name in unspecialized_arguments(executor.fn)
    return is_long, not free and value == 1, not free and value % 16 == 0


def code(codec, num_rows: int, dim: int) -> None:
    """Encode and decode segments, of which one is empty."""
    rows = torch.tensor([num_rows, 0, 2 * num_rows, num_rows])
    offsets, width = exclusive_cumsum(rows), torch.full_like(rows, dim)
    masks = Masks.of_all_columns(rows, width, GPU)
    segments = Segments(offsets, dim, offsets[:-1] * dim, width, notes=masks)
    values = torch.empty(4 * num_rows, dim, device=GPU)
    most = codec.max_nbytes(segments)
    payload = torch.empty(int(most.sum()) + 64, dtype=torch.uint8, device=GPU)  # for made-up sizes
    at = exclusive_cumsum(most)[:-1]
    encoded = codec.encode(values, segments, payload, at, seed=num_rows)
    codec.decode(encoded, segments, torch.empty_like(values))
    if isinstance(codec, SummingCodec):
        parts = 2 + num_rows % 2
        several = Encoded(payload, encoded.at.repeat(parts), encoded.nbytes.repeat(parts))
        codec.decode_sum(several, segments, torch.empty_like(values), held_at=parts - 1)


def merge_bags(run: DryRun, size: int) -> None:
    """Find distinct bags of two ids each, take them, give samples their rows, and sum them."""
    total, dims = 3 * size, torch.full((3,), 7)
    ids = torch.empty(2 * total, dtype=torch.int64, device=GPU)
    lengths = torch.empty(total, dtype=torch.int32, device=GPU)
    num_bags = torch.full((3,), size)
    run.replies = [torch.cat([num_bags, 2 * num_bags, torch.tensor([0, 2 * total])])]
    weights = torch.empty(2 * total, device=GPU)
    bags = unique_bags(ids, lengths, num_bags, torch.ones(3, dtype=torch.float64), weights=weights)
    run.replies = [torch.tensor([2 * total])]
    take_bags(ids, lengths, bags.first, weights=weights)
    starts, columns = exclusive_cumsum(bags.counts * dims)[:-1], exclusive_cumsum(dims)[:-1]
    blocks = BagBlocks(starts, bags.counts, dims, columns, torch.arange(3))
    packed, matrix = torch.empty(7 * total, device=GPU), torch.empty(size, 21, device=GPU)
    expand(packed, blocks, bags.inverse.view(3, size), matrix)
    sum_by_bag(matrix, blocks, bags.inverse.view(3, size), packed)
    rank_sum(torch.empty(3, 7 * size, device=GPU), torch.empty(7 * size, device=GPU))


def compiled_anew(use) -> Iterator[tuple[str, str]]:
    """Yield kernel and argument of what one size compiles and another does not."""
    by_size = []
    for size in SIZES:
        with dry_run(Launches) as run, run, deferring(DeferredChecks()):
            use(run, size)
        by_size.append(run.seen)
    for kernel, name in set().union(*by_size):
        forms = [seen[kernel, name] for seen in by_size if (kernel, name) in seen]
        known = {n for prefix, names in KNOWN.items() for n in names if kernel.startswith(prefix)}
        if any(form != forms[0] for form in forms) and name not in known:
            yield kernel, name


@pytest.mark.triton
@pytest.mark.parametrize("dim", [64, 7])
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_rows_of_another_number_compile_nothing(codec, dim: int) -> None:
    try:
        codec.max_nbytes(Segments.packed([1], dim))
    except ValueError:  # a dim that FBGEMM does not take
        dim = 8
    assert sorted(compiled_anew(lambda _run, size: code(codec, size, dim))) == []


@pytest.mark.triton
def test_batches_of_another_size_compile_nothing() -> None:
    assert sorted(compiled_anew(merge_bags)) == []


@pytest.mark.triton
def test_another_dim_does() -> None:
    """The test above would see it."""

    def of_other_dims(_run: DryRun, size: int) -> None:
        code(Rowwise(8), 16, 32 if size == 16 else 64)

    assert ("rowwise.gpu._quantize", "BLOCK_DIM") in set(compiled_anew(of_other_dims))
