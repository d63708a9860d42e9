"""Presets that configs/README.md calls passed have records of their own settings that pass."""

from pathlib import Path

import pytest

from trec_qcomm import load_preset
from trec_qcomm.config import config_from_dict, parse_yaml
from trec_qcomm.config.differences import flat_config
from trec_qcomm.lab import records
from trec_qcomm.lab.study.gates import PASS
from trec_qcomm.lab.study.verdicts import Rules, judge

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "examples" / "criteo" / "results"
RECORDS = {  # {preset: (file, name of the configuration in it)}
    "best": ("best.jsonl", "best"),
    "fast": ("dense.jsonl", "best_dense_float6"),  # its former name
    "int4": ("dense.jsonl", "int4"),
    "int8": ("dense.jsonl", "int8"),
    "mixed_tables": ("dense.jsonl", "mixed_tables"),
    "fp16_bf16": ("dense.jsonl", "fp16_bf16"),
    "bf16": ("dense.jsonl", "bf16"),
    "dense_float6": ("dense.jsonl", "dense_float6"),
    "dense_int8": ("dense.jsonl", "two_shot_int8_stochastic"),
}
NOT_TRAINED = ("data_parallel", "ids")  # tables of a table-wise plan have none; ids are exact


def test_every_preset_that_is_said_to_have_passed_names_its_records():
    page = (ROOT / "configs" / "README.md").read_text(encoding="utf-8").splitlines()
    said = [
        line.split("`")[1].removesuffix(".yaml") for line in page if line.endswith("| passed |")
    ]
    assert sorted(said) == sorted(RECORDS)


@pytest.mark.parametrize("preset", RECORDS)
def test_the_records_of_a_preset_pass(preset):
    file, name = RECORDS[preset]
    study = [r for r in records.read(RESULTS / file) if r.num_ranks == 4]
    ours = [r for r in study if r.configuration == name]
    base = [r for r in study if r.configuration == "fp32"]
    verdict = judge(ours, base, Rules.from_record(base[0]), "training")
    assert verdict is not None
    assert verdict.text == PASS
    trained = flat_config(config_from_dict(parse_yaml(ours[0].config, name=name)))
    shipped = flat_config(load_preset(preset))
    differing = {key for key in trained | shipped if trained.get(key) != shipped.get(key)}
    assert {key.partition(".")[0] for key in differing} <= set(NOT_TRAINED)
