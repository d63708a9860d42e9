"""Each plan says where all 26 tables lie."""

import pytest
import torch
from data import FEATURES
from plans import PLANS, build_plan
from torchrec.distributed.types import EmbeddingModuleShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

pytestmark = pytest.mark.usefixtures("one_host")
SIZES = [10 * (k + 1) for k in range(26)]  # nine tables below 100 rows


@pytest.fixture
def one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")


def plan_of(kind: str, *, embedding_dim: int = 16, world_size: int = 2) -> dict[str, object]:
    tables = [
        EmbeddingBagConfig(
            name=f"t_{feature}",
            embedding_dim=embedding_dim,
            num_embeddings=rows,
            feature_names=[feature],
        )
        for feature, rows in zip(FEATURES, SIZES, strict=True)
    ]
    model = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    plan = build_plan(model, kind, world_size=world_size, device_type="cpu").plan[""]
    assert isinstance(plan, EmbeddingModuleShardingPlan)
    return dict(plan)


@pytest.mark.parametrize("kind", PLANS)
def test_every_table_has_a_place(kind: str) -> None:
    assert set(plan_of(kind)) == {f"t_{feature}" for feature in FEATURES}


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_table_wise_gives_ranks_equal_shares(world_size: int) -> None:
    ranks = [table.ranks[0] for table in plan_of("table_wise", world_size=world_size).values()]
    counts = [ranks.count(rank) for rank in range(world_size)]
    assert max(counts) - min(counts) <= 1
    rows = [
        sum(size for size, owner in zip(SIZES[::-1], ranks, strict=True) if owner == rank)
        for rank in range(world_size)
    ]
    assert max(rows) < 1.2 * min(rows)


def test_mixed_chooses_by_size() -> None:
    kinds = [table.sharding_type for table in plan_of("mixed").values()]
    assert kinds.count("data_parallel") == 9
    assert kinds.count("column_wise") == 3
    assert kinds.count("table_wise") == 14


def test_column_wise_cuts_every_table() -> None:
    for table in plan_of("column_wise", embedding_dim=16).values():
        assert table.ranks == [0, 1]
        assert [s.shard_sizes[1] for s in table.sharding_spec.shards] == [8, 8]


def test_columns_that_torchrec_cannot_cut_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"embedding_dim 12: over 2 ranks .* multiple of 8"):
        plan_of("column_wise", embedding_dim=12)


def test_an_unknown_plan_is_an_error() -> None:
    with pytest.raises(ValueError, match="'row_wise': not one of table_wise, column_wise, mixed"):
        plan_of("row_wise")
