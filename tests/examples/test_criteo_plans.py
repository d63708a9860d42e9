"""Each plan says where all 26 tables lie; plan files are checked field by field."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from data.dataset import FEATURES
from plans.files import FOLDER, Cluster, build_plan, choose_sharding, load_plan, plan_names
from plans.generators import Place
from plans.planned import make_plan
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import EmbeddingModuleShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from trec_qcomm import QComm

MEASURED = FOLDER.parents[1] / "examples" / "bench" / "results" / "table_sizes.jsonl"
SIZES = [10 * (k + 1) for k in range(26)]  # nine tables below 100 rows
EXPLICIT = [name for name in plan_names() if name != "planned"]


def model(embedding_dim: int = 16) -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(
            name=f"t_{feature}",
            embedding_dim=embedding_dim,
            num_embeddings=rows,
            feature_names=[feature],
        )
        for feature, rows in zip(FEATURES, SIZES, strict=True)
    ]
    return EmbeddingBagCollection(tables=tables, device=torch.device("meta"))


def plan_of(
    name: str | Path, *, embedding_dim: int = 16, world_size: int = 4, ranks_per_node: int = 2
) -> dict[str, Any]:
    plan = build_plan(
        model(embedding_dim),
        load_plan(str(name)),
        world_size=world_size,
        ranks_per_node=ranks_per_node,
        device_type="cpu",
    ).plan[""]
    assert isinstance(plan, EmbeddingModuleShardingPlan)
    return dict(plan)


@pytest.mark.parametrize("name", EXPLICIT)
def test_every_table_has_a_place(name: str) -> None:
    plan = plan_of(name)
    assert set(plan) == {f"t_{feature}" for feature in FEATURES}
    for table in plan.values():
        kernel = "dense" if table.sharding_type == "data_parallel" else "fused"
        assert table.compute_kernel == kernel


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_table_wise_gives_ranks_equal_shares(world_size: int) -> None:
    plan = plan_of("table_wise", world_size=world_size, ranks_per_node=1)
    ranks = [table.ranks[0] for table in plan.values()]
    counts = [ranks.count(rank) for rank in range(world_size)]
    assert max(counts) - min(counts) <= 1
    rows = [
        sum(size for size, owner in zip(SIZES[::-1], ranks, strict=True) if owner == rank)
        for rank in range(world_size)
    ]
    assert max(rows) < 1.2 * min(rows)


def test_greedy_gives_ranks_equal_rows(tmp_path: Path) -> None:
    """One table that has half of all rows is alone; in turn it would have a quarter of the rest."""
    file = tmp_path / "greedy.yaml"
    file.write_text("sharding: greedy_table_wise\n")
    tables = [
        EmbeddingBagConfig(
            name=f"t{number}", embedding_dim=4, num_embeddings=rows, feature_names=[f"f{number}"]
        )
        for number, rows in enumerate([1, 7, 2, 1, 2, 1])
    ]
    chosen = choose_sharding(tables, load_plan(str(file)), place=Place(2, 1))
    module = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    sharder = EmbeddingBagCollectionSharder()
    parameters = sharder.shardable_parameters(module)
    ranks = {
        name: make(parameters[name], 1, 2, "cpu", sharder).ranks for name, make in chosen.items()
    }
    assert [ranks[f"t{number}"] for number in range(6)] == [[1], [0], [1], [1], [1], [1]]


def test_mixed_chooses_by_size() -> None:
    plan = plan_of("mixed")
    kinds = Counter(table.sharding_type for table in plan.values())
    assert kinds == {"data_parallel": 9, "column_wise": 3, "table_wise": 14}
    assert [name for name, table in plan.items() if table.sharding_type == "column_wise"] == [
        f"t_{feature}" for feature in FEATURES[:-4:-1]
    ]


def test_column_wise_cuts_every_table() -> None:
    for table in plan_of("column_wise", world_size=2).values():
        assert table.ranks == [0, 1]
        assert [s.shard_sizes[1] for s in table.sharding_spec.shards] == [8, 8]


def test_row_wise_cuts_every_table() -> None:
    table = plan_of("row_wise")["t_C2"]
    assert [s.shard_sizes for s in table.sharding_spec.shards] == [[5, 16]] * 4


def test_two_level_cuts_rows_inside_a_node() -> None:
    plan = plan_of("two_level")
    nodes = Counter(tuple(table.ranks) for table in plan.values())
    assert nodes == {(0, 1): 13, (2, 3): 13}
    assert [s.shard_sizes for s in plan["t_C2"].sharding_spec.shards] == [[10, 16]] * 2


def test_grid_cuts_columns_over_nodes_and_rows_inside() -> None:
    table = plan_of("grid")["t_C2"]
    assert table.ranks == [0, 1, 2, 3]
    places = [(s.shard_offsets, s.shard_sizes) for s in table.sharding_spec.shards]
    assert places == [
        ([0, 0], [10, 8]), ([10, 0], [10, 8]), ([0, 8], [10, 8]), ([10, 8], [10, 8])
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["two_level", "grid"])
def test_two_levels_need_two_nodes(name: str) -> None:
    message = rf"{name}\.yaml: sharding: \w+ needs two nodes or more; 4 ranks with 4 a node are 1"
    with pytest.raises(ValueError, match=message):
        plan_of(name, ranks_per_node=4)


@pytest.mark.parametrize(("name", "parts"), [("column_wise", "4 ranks"), ("grid", "2 nodes")])
def test_columns_that_torchrec_cannot_cut_are_an_error(name: str, parts: str) -> None:
    with pytest.raises(ValueError, match=rf"embedding_dim 12: over {parts} .* multiple of"):
        plan_of(name, embedding_dim=12)


def test_the_planner_makes_a_plan() -> None:
    cluster = load_plan("planned").cluster
    assert cluster is not None
    plan = make_plan(
        model(),
        cluster,
        sharders=[EmbeddingBagCollectionSharder()],
        qcomm=None,
        batch_size=64,
        world_size=4,
        ranks_per_node=2,
        device_type="cpu",
    )
    (tables,) = plan.plan.values()
    assert isinstance(tables, EmbeddingModuleShardingPlan)
    assert set(tables) == {f"t_{feature}" for feature in FEATURES}


def test_a_planned_plan_reads_what_was_measured_beside_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "sharding: planned\n"
        "cluster: {inter_node_gb_s: 0.125, intra_node_gb_s: 5, measured: sizes.jsonl}\n"
    )
    with pytest.raises(
        ValueError, match=r"mine\.yaml: cluster\.measured: there is no file .*sizes"
    ):
        load_plan(str(file))
    (tmp_path / "sizes.jsonl").write_bytes(MEASURED.read_bytes())
    plan = load_plan(str(file))
    assert plan.measured_path == tmp_path / "sizes.jsonl"
    assert load_plan("planned").measured_path is None
    assert plan.cluster is not None
    options = {"batch_size": 2048, "world_size": 4, "ranks_per_node": 1, "device_type": "cpu"}
    qcomm = QComm.from_preset("fast")
    sharders = qcomm.sharders()
    made = [
        make_plan(model(64), plan.cluster, sharders=sharders, qcomm=qcomm, **options, **measured)
        for measured in ({"measured": plan.measured_path, "pipeline": True}, {})
    ]
    ranks = [
        {name: table.ranks for (tables,) in [p.plan.values()] for name, table in tables.items()}
        for p in made
    ]
    assert ranks[0] != ranks[1]
    with pytest.raises(ValueError, match="2048 bags a rank, and 64 are planned"):
        make_plan(
            model(64), plan.cluster, sharders=sharders, qcomm=qcomm,
            **options | {"batch_size": 64}, measured=plan.measured_path,
        )  # fmt: skip


def test_rules_hold_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "sharding: row_wise\n"
        "rules:\n"
        "  - {tables: [t_C1, 't_C2?'], sharding: table_wise}\n"
        "  - {tables: ['t_C2*'], below_rows: 30, sharding: data_parallel}\n"
        "  - {largest: 1, sharding: column_wise}\n"
    )
    kinds = {name: table.sharding_type for name, table in plan_of(file).items()}
    assert kinds["t_C1"] == kinds["t_C26"] == "table_wise"
    assert kinds["t_C2"] == "data_parallel"
    assert kinds["t_C19"] == "column_wise"
    assert Counter(kinds.values())["row_wise"] == 26 - 8 - 1 - 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "top level: expected a mapping of sharding, rules, cluster"),
        ("rules: []", "sharding: missing"),
        ("sharding: rowwise", r"sharding: 'rowwise' is not one of data_parallel, .*, planned"),
        ("{sharding: row_wise, rule: []}", "rule: unknown key; allowed: sharding, rules, cluster"),
        ("{sharding: row_wise, rules: 3}", "rules: expected a list"),
        ("{sharding: row_wise, rules: [{}]}", r"rules\[0\]\.sharding: missing"),
        ("{sharding: row_wise, rules: [{sharding: planned}]}", r"rules\[0\]\.sharding: 'planned'"),
        (
            "{sharding: row_wise, rules: [{sharding: row_wise, tables: t_C1}]}",
            r"rules\[0\]\.tables: expected a list of patterns, got 't_C1'",
        ),
        (
            "{sharding: row_wise, rules: [{sharding: row_wise, largest: 0}]}",
            r"rules\[0\]\.largest: 0 is not an integer above 0",
        ),
        (
            "{sharding: row_wise, rules: [{sharding: row_wise, tables: [x*]}]}",
            r"rules\[0\]\.tables: 'x\*' matches no table; the model has: t_C26, ",
        ),
        ("sharding: planned", "cluster: needed for sharding planned, and for no other"),
        (
            "{sharding: planned, cluster: {inter_node_gb_s: 0, intra_node_gb_s: 1}}",
            r"cluster\.inter_node_gb_s: 0 is not a number above 0",
        ),
        (
            "{sharding: planned, cluster: {inter_node_gb_s: 1, intra_node_gb_s: 1, "
            "encode_gb_s: 1}}",
            r"cluster\.encode_gb_s, decode_gb_s: give both or none",
        ),
        (
            "{sharding: planned, cluster: {inter_node_gb_s: 1, intra_node_gb_s: 1, measured: 3}}",
            r"cluster\.measured: 3 is not the name of a file",
        ),
        ("sharding: [", "while parsing"),
    ],
)
def test_a_bad_file_is_an_error_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.yaml: {message}"):
        plan_of(file)


def test_an_unknown_plan_is_an_error() -> None:
    with pytest.raises(
        ValueError, match="plan 'rows': neither a file nor one of column_wise, grid"
    ):
        load_plan("rows")


def test_equal_plans_are_equal_wherever_they_lie(tmp_path: Path) -> None:
    file = tmp_path / "copy.yaml"
    file.write_text("sharding: row_wise\n")
    assert load_plan(str(file)) == load_plan("row_wise")
    assert str(load_plan(str(file))) == str(load_plan("row_wise"))  # what a resumed run compares
    assert Cluster(inter_node_gb_s=1, intra_node_gb_s=2).encode_gb_s is None


def test_which_plans_depend_on_nodes() -> None:
    depending = {name for name in plan_names() if load_plan(name).depends_on_nodes}
    assert depending == {"grid", "planned", "two_level"}
