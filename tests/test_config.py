from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from trec_qcomm import (
    Cast,
    Config,
    ErrorBounded,
    Float6,
    GradientRule,
    HopCodecs,
    Identity,
    QComm,
    Rowwise,
    TableGradientRule,
    TableRule,
    Threshold,
    TopK,
    load_config,
)
from trec_qcomm.config import (
    AllReduceRule,
    IdRule,
    codec_from_dict,
    codec_to_dict,
    config_from_dict,
    config_to_dict,
    read_config,
)
from trec_qcomm.ext.replicas.rule import SyncRule
from trec_qcomm.lab.debug.rule import DebugRule

FOLDER = Path(__file__).parents[1] / "configs"
CONFIGS = sorted([*FOLDER.glob("*.yaml"), *FOLDER.glob("papers/*.yaml")])
RULE = {"tables": ["*"], "forward": {"codec": "identity"}, "backward": {"codec": "identity"}}


def load(tmp_path, text):
    path = tmp_path / "my.yaml"
    path.write_text(text)
    return load_config(path)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_shipped_configs_survive_a_round_trip(path):
    config = load_config(path)
    text = yaml.safe_dump(config_to_dict(config))
    assert config_from_dict(yaml.safe_load(text), source=str(path)) == config
    assert path.name in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize(
    "codec",
    [Identity(), Cast("bf16", overflow="raise"), Rowwise(2, "stochastic", "raise"), Rowwise(8)],
    ids=repr,
)
def test_codecs_survive_a_round_trip(codec):
    data = yaml.safe_load(yaml.safe_dump(codec_to_dict(codec)))
    assert codec_from_dict(data) == codec
    assert eval(repr(codec)) == codec


def low_rank(**fields):
    return {"dense": {"codec": "float6", "low_rank": fields}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"embeding": []},
            "embeding: unknown key; allowed: embedding, dense, .*; did you mean embedding[?]$",
        ),
        ({"zzz": []}, "zzz: unknown key; allowed: .*, measure_error$"),
        ({"seed": -1}, r"seed: -1 is not an integer in 0..2\^63"),
        ({"seed": True}, r"seed: True is not an integer"),
        ({"measure_error": 1}, "measure_error: 1 is not true or false"),
        ({"embedding": []}, "embedding: expected a list of one or more rules"),
        ({"embedding": RULE}, "embedding: expected a list of mappings, got {"),
        ({"embedding": [RULE | {"forwards": 1}]}, r"embedding\[0\]\.forwards: unknown key"),
        ({"embedding": [RULE | {"tables": []}]}, r"embedding\[0\]\.tables: expected a pattern or"),
        ({"embedding": [RULE | {"tables": [3]}]}, r"embedding\[0\]\.tables\[0\]: 3 is not a text"),
        (
            {"embedding": [RULE, RULE | {"forward": {"codec": "zip"}}]},
            r"embedding\[1\]\.forward: unknown codec 'zip'; allowed: cast, .*identity, rowwise",
        ),
        (
            {"embedding": [RULE | {"forward": {"codec": "rowwise", "bits": 5}}]},
            r"embedding\[0\]\.forward\.bits: 5 is not one of \(8, 4, 2\)",
        ),
        (
            {"embedding": [RULE | {"forward": {"codec": "rowwise"}}]},
            r"embedding\[0\]\.forward\.bits: missing",
        ),
        (
            {"embedding": [RULE | {"forward": {"codec": "cast", "dtype": "fp16", "bits": 4}}]},
            r"embedding\[0\]\.forward\.bits: unknown key; allowed: dtype, overflow",
        ),
        (
            {"embedding": [RULE | {"backward": "int8"}]},
            r"embedding\[0\]\.backward: unknown codec 'int8'; allowed: cast",
        ),
        ({"embedding": [RULE | {"backward": 8}]}, r"embedding\[0\]\.backward: expected the name"),
        ({"dense": {"codec": "rowwise"}}, r"dense\.codec\.bits: missing"),
        ({"data_parallel": {"codec": "identity", "block": 8}}, r"data_parallel\.block: unk"),
        (
            {"embedding": [RULE | {"intra": {"forwards": {"codec": "identity"}}}]},
            r"embedding\[0\]\.intra\.forwards: unknown key; allowed: forward, backward",
        ),
        (
            {"embedding": [RULE | {"intra": {"forward": {"codec": "cast", "dtype": "fp8"}}}]},
            r"embedding\[0\]\.intra\.forward\.dtype: 'fp8' is not one of",
        ),
        ({"embedding": [RULE | {"intra": None}]}, r"embedding\[0\]\.intra: expected a mapping"),
        ({"ids": "packed"}, "ids: expected a mapping of codec"),
        ({"ids": {"codec": "zip"}}, r"ids\.codec: 'zip' is not one of \('packed',\)"),
        ({"ids": {"codec": "packed", "bits": 8}}, "ids.bits: unknown key; allowed: codec"),
        ({"debug": True}, "debug: expected a mapping of every, tables, shadow, folder"),
        ({"debug": {"ever": 5}}, "debug.ever: unknown key; allowed: every, tables, shadow, folder"),
        ({"debug": {"every": 0}}, "debug.every: 0 is not an integer >= 1"),
        ({"debug": {"tables": []}}, "debug.tables: expected a pattern or a list of patterns"),
        ({"debug": {"shadow": "int8"}}, "debug.shadow: expected a list of codecs, got 'int8'"),
        ({"debug": {"shadow": ["int8"]}}, r"debug.shadow\[0\]: unknown codec 'int8'"),
        ({"debug": {"shadow": ["forward_mask"]}}, r"debug: shadow\[0\]: forward_mask needs the"),
        ({"debug": {"folder": 3}}, "debug.folder: 3 is not a text"),
        ({"sync": {"every": 0}}, "sync.every: 0 is not an integer in 1"),
        ({"sync": {"optimizer": {"codec": "rowwise", "bits": 8}}}, "sync: optimizer: rowwise is"),
        ({"sync": {"codec": {"codec": "forward_mask"}}}, "sync: codec: forward_mask is for"),
        ({"sync": {"algorithm": "ring"}}, "sync.algorithm: 'ring' is not one of"),
        ({"sync": {"feedback_rows": -1}}, "sync.feedback_rows: -1 is not"),
        ({"sync": {"codes": "identity"}}, "sync.codes: unknown key; allowed: codec, optimizer"),
        (low_rank(rank="auto"), r"dense\.low_rank\.rank: 'auto' is not an integer in 1\.\.256"),
        (low_rank(rank=True), r"dense\.low_rank\.rank: True is not an integer"),
        (low_rank(rank=0), r"dense\.low_rank\.rank: 0 is not an integer in 1\.\.256"),
        (low_rank(rank=257), r"dense\.low_rank\.rank: 257 is not an integer in 1\.\.256"),
    ],
)  # fmt: skip
def test_errors_name_file_field_and_choices(tmp_path, change, message):
    with pytest.raises(ValueError, match=r"my\.yaml: " + message):
        load(tmp_path, yaml.safe_dump({"embedding": [RULE]} | change))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("embedding: [", "my.yaml: cannot be read: while parsing"),
        ("? [a]\n: b", "my.yaml: .*key .* is not a word"),
        ("seed: !!timestamp abc", "my.yaml: cannot be read"),
        ("seed: !!bool abc", "my.yaml: cannot be read"),
        ("seed: 2001-99-99", "my.yaml: cannot be read"),
        ("[" * 3000, "my.yaml: cannot be read"),
        ("embedding: [3]", r"my.yaml: embedding\[0\]: expected a mapping of tables"),
        ("seed: 1\nseed: 2\n", "key 'seed' is given twice"),
        ("- 1", "my.yaml: top level: expected a mapping of embedding"),
        ("", "my.yaml: top level: expected a mapping of embedding"),
        ("a: &a {seed: 1}\nb: {<<: *a, <<: *a}", "key '<<' is given twice"),
        ("a: &a {seed: 1}\nb: {<<: *a, seed: 1, seed: 2}", "key 'seed' is given twice"),
        ("a: &a {b: &b {<<: *a}}", "recursive"),
        ("<<: 3", "expected a mapping or list of mappings for merging"),
        ("dense: {x-codec: float6, codec: float6}", r"dense\.x-codec: unknown key"),
        ("xcodec: 3", "xcodec: unknown key"),
        ("seed: 1:30", "seed: '1:30' is not an integer"),
        ("seed: 1_0:30.5", "seed: '1_0:30.5' is not an integer"),
        (
            "x-a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
            + "".join(
                f"x-{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghij")
            )
            + "dense: *j",
            r"dense\[0\]: expected .* got \[\[",
        ),
    ],
)
def test_broken_documents_name_the_file(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, text)


@pytest.mark.parametrize("load", [load_config, QComm.from_yaml, read_config])
def test_a_missing_file_is_a_file_not_found_error(load):
    with pytest.raises(FileNotFoundError, match=r"No such file.*folder/none\.yaml"):
        load("folder/none.yaml")


def test_a_folder_or_bytes_are_no_config(tmp_path):
    with pytest.raises(ValueError, match=rf"{tmp_path}: cannot be read: .*directory"):
        load_config(tmp_path)
    (tmp_path / "my.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"my\.yaml: cannot be read: .*decode"):
        load_config(tmp_path / "my.yaml")


ANCHORED = """
x-codecs: &int4 {codec: rowwise, bits: 4}
x-rules: {common: &common {backward: {<<: *int4, rounding: stochastic}, unique_bags: auto}}
embedding:
  - &first {<<: *common, tables: "a_*", forward: *int4}
  - <<: [*first, {tables: "never", seed: 9}]
    tables: "*"
    forward: {<<: *int4, bits: 8}
"""


def test_anchors_and_merge_keys_work(tmp_path):
    first, second = load(tmp_path, ANCHORED.replace(", seed: 9", "")).embedding
    assert first.tables == ("a_*",)
    assert (first.forward, first.backward) == (Rowwise(4), Rowwise(4, "stochastic"))
    assert second.tables == ("*",)
    assert (second.forward, second.backward) == (Rowwise(8), Rowwise(4, "stochastic"))
    assert first.unique_bags == second.unique_bags == "auto"
    with pytest.raises(ValueError, match=r"my\.yaml: embedding\[1\]\.seed: unknown key"):
        load(tmp_path, ANCHORED)


@pytest.mark.parametrize("text", ["1e-3", "1.e-3", ".1e-2", "0.001", "1E-3", "1.0e-3", "+1e-3"])
def test_exponents_are_numbers(tmp_path, text):
    yaml_text = f"embedding: [{{tables: a, forward: {{codec: error_bounded, bound: {text}}}, "
    config = load(tmp_path, yaml_text + "backward: identity}]")
    assert config.embedding[0].forward == ErrorBounded(0.001)
    assert type(config.embedding[0].forward.bound) is float


@pytest.mark.parametrize("table", ["1e5", "1E-3", "yes", "0x1", "<<", "t 1: #", "1e", "e5"])
def test_a_table_may_look_like_anything_else(tmp_path, table):
    config = Config(embedding=[TableRule(tables=table, forward=Identity(), backward=Identity())])
    assert load(tmp_path, QComm(config).to_yaml()).embedding == config.embedding


def rules(*patterns):
    return tuple(TableRule(tables=(p,), forward=Rowwise(4), backward=Rowwise(8)) for p in patterns)


@pytest.mark.parametrize("tables", ["t_*", ["t_*"], ("t_*",)])
def test_patterns_are_any_sequence_or_one_text(tables):
    rule = TableRule(tables=tables, forward=Identity(), backward=Identity())
    assert rule == TableRule(tables=("t_*",), forward=Identity(), backward=Identity())
    assert hash(Config(embedding=[rule])) == hash(Config(embedding=(rule,)))
    data = RULE | {"tables": tables}
    assert config_from_dict({"embedding": [data]}).embedding == (rule,)


def test_a_codec_name_is_short_for_its_mapping(tmp_path):
    text = """
      embedding: [{tables: "*", forward: identity, backward: identity, intra: {forward: identity}}]
      dense: {codec: float6}
      data_parallel: {codec: identity}
    """
    config = load(tmp_path, text)
    assert config.embedding == (TableRule(tables="*", forward=Identity(), backward=Identity()),)
    assert config.dense == GradientRule(codec=Float6())
    assert config.data_parallel == TableGradientRule(codec=Identity())
    assert config_from_dict(config_to_dict(config), source=config.source) == config


def test_codecs_of_gradients_do_not_send_rows():
    codec = {"codec": "threshold", "threshold": 0.1}
    config_from_dict({"embedding": [RULE | {"backward": codec}], "dense": {"codec": codec}})
    for change, where in (
        ({"forward": codec}, r"embedding\[0\]: forward"),
        ({"intra": {"forward": codec}}, r"embedding\[0\]\.intra: forward"),
    ):
        with pytest.raises(ValueError, match=f"{where}: threshold is for gradients only"):
            config_from_dict({"embedding": [RULE | change]})


@pytest.mark.parametrize(
    ("codec", "block", "message"),
    [
        (Rowwise(8), 1, r"rowwise sends 5 bytes for a value, .*allowed with it: 2 to 1048576"),
        (Rowwise(4), 1, "rowwise sends 5 bytes for a value"),
        (Identity(), 2**20 + 1, r"block: 1048577 is not an integer in 1\.\.1048576"),
        (Threshold(0.1), 10**12, "block: 1000000000000 is not an integer in"),
    ],
)
def test_absurd_blocks_are_refused(codec, block, message):
    with pytest.raises(ValueError, match=message):
        GradientRule(codec=codec, block=block)


@pytest.mark.parametrize(
    ("codec", "block"),
    [
        (Rowwise(8), 2), (Cast("fp16"), 1), (Identity(), 1), (Threshold(0.1), 1),
        (TopK(threshold=0.1), 1), (ErrorBounded(0.1), 1), (Rowwise(4), 2**20), (Float6(), 128),
    ],
)  # fmt: skip
def test_other_blocks_are_not(codec, block):
    assert GradientRule(codec=codec, block=block).block == block


def test_no_kind_of_gradient_rule_is_the_other():
    for kind, other in ((GradientRule, TableGradientRule), (TableGradientRule, GradientRule)):
        assert issubclass(kind, AllReduceRule)
        assert not issubclass(kind, other)
    with pytest.raises(
        ValueError, match=r"data_parallel: expected .* \(TableGradientRule\), got G"
    ):
        Config(data_parallel=GradientRule(codec=Identity()))


def test_the_first_match_holds():
    config = Config(embedding=rules("user_*", "*"))
    assert config.rule_for("user_id") is config.embedding[0]
    assert config.rule_for("item_id") is config.embedding[1]


def test_the_hop_inside_a_node_is_exact_unless_said_otherwise(tmp_path):
    plain = load(tmp_path, yaml.safe_dump({"embedding": [RULE]}))
    assert plain.embedding[0].intra == HopCodecs(forward=Identity(), backward=Identity())
    assert "intra" not in config_to_dict(plain)["embedding"][0]
    coded = RULE | {"intra": {"forward": {"codec": "cast", "dtype": "bf16"}}}
    config = load(tmp_path, yaml.safe_dump({"embedding": [coded]}))
    assert config.embedding[0].intra == HopCodecs(forward=Cast("bf16"))
    again = config_from_dict(yaml.safe_load(yaml.safe_dump(config_to_dict(config))))
    assert again.embedding == config.embedding


def test_a_table_without_a_rule_is_an_error():
    config = Config(embedding=rules("user_*"), source="x.yaml")
    with pytest.raises(ValueError, match=r"x\.yaml: embedding: no pattern matches table 'item'"):
        config.rule_for("item")


@pytest.mark.parametrize("section", ["dense", "data_parallel"])
def test_without_rules_all_tables_are_exact(section):
    config = config_from_dict({section: {"codec": "float6"}})
    config.check_patterns(["user_id"])
    rule = config.rule_for("user_id")
    assert (rule.forward, rule.backward, rule.intra) == (Identity(), Identity(), HopCodecs())
    assert (rule.unique_bags, config.embedding) == (False, ())
    assert "*: Identity() forward, Identity() backward; dense: " in repr(QComm(config))
    assert config_from_dict(config_to_dict(config)) == config


def test_packed_ids_need_no_other_section():
    config = config_from_dict({"ids": {"codec": "packed"}})
    assert (config.embedding, config.ids) == ((), IdRule(codec="packed"))
    assert config_from_dict(config_to_dict(config)) == config
    assert repr(QComm(config)).endswith("; ids: packed)")
    with pytest.raises(
        ValueError, match=r"ids: expected a mapping of codec \(IdRule\), got 'packed'"
    ):
        Config(embedding=rules("*"), ids="packed")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rowwise(4.0),
        lambda: Rowwise(True),
        lambda: Cast(["fp16"]),
        lambda: TableRule(tables="", forward=Identity(), backward=Identity()),
        lambda: TableRule(tables={"t_1"}, forward=Identity(), backward=Identity()),
        lambda: TableRule(tables=5, forward=Identity(), backward=Identity()),
        lambda: TableRule(tables=("*",), forward=Identity, backward=Identity()),
        lambda: TableRule(
            tables=("*",), forward=Identity(), backward=Identity(), intra=Cast("bf16")
        ),
        lambda: HopCodecs(forward=Rowwise),
        lambda: Config(embedding=(1,)),
        lambda: Config(dense=GradientRule(codec=Rowwise(4)), debug=DebugRule),
        lambda: DebugRule(shadow=[Rowwise]),
        lambda: DebugRule(shadow="float6"),
        lambda: Config(embedding=5),
        lambda: QComm({"embedding": []}),
    ],
)
def test_wrong_types_are_refused_when_built(make):
    with pytest.raises(ValueError, match=r"is not one of|expected"):
        make()


def test_a_sync_rule_comes_back_as_it_was():
    config = config_from_dict(
        {"sync": {"codec": {"codec": "rowwise", "bits": 4}, "every": 3, "feedback_rows": 0}}
    )
    assert config.sync is not None
    assert (config.sync.codec, config.sync.every) == (Rowwise(bits=4), 3)
    assert config_from_dict(config_to_dict(config)) == config
    assert config_from_dict({"sync": {}}).sync == SyncRule()
    assert repr(QComm(config)).endswith(f"; sync: {Rowwise(bits=4)!r} every 3)")
