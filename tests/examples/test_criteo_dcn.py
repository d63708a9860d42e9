"""The example's DLRM-DCNv2: torchrec's own at tables of one dim, and for tables of several."""

import pytest
import torch
from dcn import DCN, dim_of_rows
from model import mlperf_sizes
from options import build_parser, check_options, setup_of
from torchrec.models.dlrm import DLRM_DCN
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

NAMES, NUM_DENSE, DIM = ["f1", "f2", "f3"], 5, 8
LAYERS = {"num_dense": NUM_DENSE, "dense_arch": (16, DIM), "over_arch": (12, 1)}
CROSS = {"num_layers": 3, "low_rank": 4}


def tables(*dims: int) -> EmbeddingBagCollection:
    return EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(name=f"t_{n}", embedding_dim=d, num_embeddings=9, feature_names=[n])
            for n, d in zip(NAMES, dims, strict=True)
        ]
    )


def batch() -> tuple[torch.Tensor, KeyedJaggedTensor]:
    """Four samples of 0 to 3 ids a feature."""
    lengths = torch.arange(4 * len(NAMES)) % 4
    ids = torch.arange(int(lengths.sum())) * 5 % 9
    return torch.randn(4, NUM_DENSE), KeyedJaggedTensor(NAMES, ids, lengths=lengths)


def test_it_is_torchrecs_where_tables_have_one_dim() -> None:
    torch.manual_seed(0)
    stock = DLRM_DCN(
        tables(DIM, DIM, DIM),
        dense_in_features=NUM_DENSE,
        dense_arch_layer_sizes=[16, DIM],
        over_arch_layer_sizes=[12, 1],
        dcn_num_layers=3,
        dcn_low_rank_dim=4,
    )
    ours = DCN(tables(DIM, DIM, DIM), **LAYERS, **CROSS)
    ours.load_state_dict(stock.state_dict())
    dense, sparse = batch()
    assert torch.equal(ours(dense, sparse), stock(dense, sparse))


def test_tables_may_have_different_dims() -> None:
    model = DCN(tables(4, 12, 8), **LAYERS, **CROSS)
    dense, sparse = batch()
    logits = model(dense, sparse)
    logits.sum().backward()
    assert logits.shape == (4, 1)
    bags = model.sparse_arch.embedding_bag_collection.embedding_bags
    assert [bags[f"t_{name}"].weight.grad.abs().sum() > 0 for name in NAMES] == [True] * 3


def test_small_tables_have_few_columns() -> None:
    assert [dim_of_rows(rows, 64) for rows in (0, 3, 100, 10_000, 10**7)] == [4, 8, 20, 60, 64]


def test_one_number_scales_mlperfs_sizes() -> None:
    assert mlperf_sizes(1.0) == {
        "embedding_dim": 128,
        "dense_arch": (512, 256),
        "over_arch": (1024, 1024, 512, 256),
        "cross_layers": 3,
        "cross_rank": 512,
    }
    assert mlperf_sizes(0.125)["embedding_dim"] == 16
    assert mlperf_sizes(1e-9)["over_arch"] == (4,) * 4


def test_records_have_the_sizes_that_were_trained() -> None:
    def setup(words: str) -> dict[str, object]:
        options = build_parser().parse_args(["--config", "stock", *words.split()])
        check_options(options)
        return setup_of(options)

    scaled = setup("--model dcn --scale 0.125")
    assert (scaled["dense_arch"], scaled["embedding_dim"], scaled["cross_rank"]) == (
        "64,32",
        16,
        64,
    )
    assert scaled["scale"] == 0.125
    later = {"model", "cross_rank", "cross_layers", "mixed_dims", "scale", "pipeline"}
    assert later.isdisjoint(setup(""))  # older records lack them, and are the same training


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--mixed-dims", "mixed_dims: only for --model dcn"),
        ("--cross-rank 8", "cross_rank: only for --model dcn"),
        ("--scale 1", "scale: only for --model dcn"),
        ("--model dcn --scale 2", r"scale 2\.0: expected a number above 0, at most 1"),
        ("--model dcn --scale 1 --over-arch 8", "over_arch: scale sets it; give one of them"),
        ("--model dcn --mixed-dims --dump-rows a.pt", "dump_rows: its files have one dim"),
    ],
)
def test_sizes_that_contradict_are_refused(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_options(build_parser().parse_args(["--config", "stock", *words.split()]))
