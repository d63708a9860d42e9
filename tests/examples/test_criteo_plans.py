"""Each plan says where all 26 tables lie; plan files are checked field by field."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from data.dataset import FEATURES
from plans import FOLDER, Place, build_plan, load_plan, plan_by_planner, plan_names
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
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
    place = Place(world_size, ranks_per_node)
    return dict(build_plan(model(embedding_dim), load_plan(str(name)), place).plan[""])


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
    module = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    plan = build_plan(module, load_plan(str(file)), Place(2, 1)).plan[""]
    ranks = [plan[f"t{number}"].ranks for number in range(6)]
    assert ranks == [[1], [0], [1], [1], [1], [1]]


def test_mixed_chooses_by_size() -> None:
    plan = plan_of("mixed")
    kinds = Counter(table.sharding_type for table in plan.values())
    assert kinds == {"data_parallel": 9, "column_wise": 3, "table_wise": 14}
    assert [name for name, table in plan.items() if table.sharding_type == "column_wise"] == [
        f"t_{feature}" for feature in FEATURES[:-4:-1]
    ]


def test_columns_or_rows_of_every_table_are_cut() -> None:
    for table in plan_of("column_wise", world_size=2).values():
        assert table.ranks == [0, 1]
        assert [s.shard_sizes[1] for s in table.sharding_spec.shards] == [8, 8]
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


def planned(plan: Any, dim: int, qcomm: QComm | None, batch_size: int = 2048) -> dict[str, Any]:
    sharders = [EmbeddingBagCollectionSharder()] if qcomm is None else qcomm.sharders()
    how = {"sharders": sharders, "qcomm": qcomm, "batch_size": batch_size, "pipeline": True}
    (tables,) = plan_by_planner(model(dim), plan, Place(4, 1), **how).plan.values()
    return {name: table.ranks for name, table in tables.items()}


def test_the_planner_reads_what_was_measured_beside_its_file(tmp_path: Path) -> None:
    assert set(planned(load_plan("planned"), 16, None)) == {f"t_{feature}" for feature in FEATURES}
    file, head = tmp_path / "mine.yaml", "sharding: planned\ncluster: {inter_node_gb_s: 0.125, "
    file.write_text(head + "intra_node_gb_s: 5, measured: sizes.jsonl}\n")
    with pytest.raises(
        ValueError, match=r"mine\.yaml: cluster\.measured: there is no file .*sizes"
    ):
        load_plan(str(file))
    (tmp_path / "sizes.jsonl").write_bytes(MEASURED.read_bytes())
    plan = load_plan(str(file))
    assert plan.measured_path == tmp_path / "sizes.jsonl"
    file.write_text(head + "intra_node_gb_s: 5}\n")
    qcomm = QComm.from_preset("fast")
    assert planned(plan, 64, qcomm) != planned(load_plan(str(file)), 64, qcomm)
    with pytest.raises(ValueError, match="2048 bags a rank, and 64 are planned"):
        planned(plan, 64, qcomm, batch_size=64)


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
        ("[3]", ""),
        ("rules: []", ".*missing .* 'sharding'"),
        ("sharding: rowwise", r"sharding: 'rowwise' is not one of data_parallel, .*, planned"),
        ("{sharding: row_wise, rule: []}", ".*unexpected keyword argument 'rule'"),
        ("{sharding: row_wise, rules: 3}", ".*not iterable"),
        ("{sharding: row_wise, rules: [{}]}", ".*missing .* 'sharding'"),
        ("{sharding: row_wise, rules: [{sharding: planned}]}", "sharding: 'planned' is not one of"),
        (
            "{sharding: row_wise, rules: [{sharding: row_wise, tables: [x*]}]}",
            r"tables: 'x\*' matches none of t_C26, ",
        ),
        ("sharding: planned", "cluster: needed for sharding planned, and for no other"),
        (
            "{sharding: planned, cluster: {inter_node_gb_s: 1, intra_node_gb_s: 1, "
            "encode_gb_s: 1}}",
            "encode_gb_s, decode_gb_s: give both or none",
        ),
        ("sharding: [", "while parsing"),
    ],
)
def test_a_bad_file_is_an_error_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.yaml: {message}"):
        plan_of(file)


def test_plans_are_known_by_what_they_say(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="plan 'rows': neither a file nor one of column_wise, grid"
    ):
        load_plan("rows")
    file = tmp_path / "copy.yaml"
    file.write_text("sharding: row_wise\n")
    assert load_plan(str(file)) == load_plan("row_wise")
    assert str(load_plan(str(file))) == str(load_plan("row_wise"))  # what a resumed run compares
    depending = {name for name in plan_names() if load_plan(name).depends_on_nodes}
    assert depending == {"grid", "planned", "two_level"}
