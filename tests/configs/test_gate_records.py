"""Presets that configs/README.md calls passed have records of their own settings that pass."""

import re
from pathlib import Path

import pytest

from examples.bench.gate import JUDGED
from trec_qcomm import load_preset
from trec_qcomm.config import config_from_dict, parse_yaml
from trec_qcomm.config.differences import flat_config
from trec_qcomm.lab import records
from trec_qcomm.lab.study.gates import PASS
from trec_qcomm.lab.study.verdicts import MODES, Rules, judge

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "examples" / "criteo" / "results"
PAGE = (ROOT / "configs" / "README.md").read_text(encoding="utf-8")
PASSED = re.findall(r"^\| `([a-z0-9_]+)\.yaml` .* passed \|$", PAGE, re.MULTILINE)
NOT_TRAINED = ("data_parallel", "ids")  # tables of a table-wise plan have none; ids are exact


def test_the_page_says_what_passed():
    assert len(PASSED) == 11
    assert f"`{PASSED[0]}`" in JUDGED


@pytest.mark.parametrize("preset", PASSED)
def test_the_records_of_a_preset_pass(preset):
    texts = {}
    for source in JUDGED[f"`{preset}`"]:
        file, name = source.split("/")
        study = [r for r in records.read(RESULTS / f"{file}.jsonl") if r.num_ranks == 4]
        ours = [r for r in study if r.configuration == name]
        base = [r for r in study if r.configuration == "fp32"]
        rules = Rules.from_record(base[-1])
        judged = {mode: judge(ours, base, rules, mode) for mode in MODES}
        texts |= {mode: verdict.text for mode, verdict in judged.items() if verdict}
        trained = flat_config(config_from_dict(parse_yaml(ours[0].config, name=name)))
        shipped = flat_config(load_preset(preset))
        differing = {key for key in trained | shipped if trained.get(key) != shipped.get(key)}
        assert {key.partition(".")[0] for key in differing} <= set(NOT_TRAINED)
    assert texts["training"] == PASS
    assert set(texts.values()) == {PASS}
