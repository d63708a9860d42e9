"""What differs between two configs is told key by key."""

import json

import pytest

from trec_qcomm import load_preset
from trec_qcomm.config import config_from_dict, config_to_dict
from trec_qcomm.config.differences import (
    changes_of,
    config_text,
    flat_config,
    text_of_changes,
    text_of_ranks,
)

RULE = {"tables": ["a*", "b"], "forward": "identity", "backward": {"codec": "rowwise", "bits": 4}}


def config_of(**changes):
    return config_from_dict({"embedding": [RULE]} | changes)


def test_a_config_by_keys():
    assert flat_config(config_of(seed=3)) == {
        "embedding[0].tables": "['a*', 'b']",
        "embedding[0].forward.codec": "'identity'",
        "embedding[0].backward.codec": "'rowwise'",
        "embedding[0].backward.bits": "4",
        "embedding[0].backward.rounding": "'nearest'",
        "embedding[0].backward.nonfinite": "'keep'",
        "seed": "3",
        "measure_error": "False",
    }


@pytest.mark.parametrize("name", ["best", "papers/dual_level", "papers/dense_dct"])
def test_equal_configs_have_no_changes(name):
    config = load_preset(name)
    assert changes_of(config_text(config), config) == {}
    other = load_preset("int8")
    assert changes_of(config_text(config), other)


def test_the_debugger_is_no_difference():
    debug = {"every": 7, "tables": "a*", "shadow": ["float6", {"codec": "rowwise", "bits": 2}]}
    watched = config_of(debug=debug | {"folder": "runs"})
    assert config_from_dict(config_to_dict(watched)) == watched
    assert flat_config(watched) == flat_config(config_of())
    assert changes_of(config_text(watched), config_of()) == {}
    assert changes_of(config_text(config_of()), watched) == {}
    unreadable = config_text(watched).replace('"float6"', '"gone"')
    assert changes_of(unreadable, config_of()) == {}


def test_changes_name_keys_and_values():
    before = config_of(dense={"codec": "float6"}, measure_error=True)
    dense = {"codec": "float6", "error_feedback": True}
    after = config_of(embedding=[RULE | {"tables": "*"}], dense=dense)
    changes = changes_of(config_text(before), after)
    assert changes == {
        "embedding[0].tables": "['a*', 'b'] -> ['*']",
        "dense.error_feedback": "not given -> True",
    }
    assert text_of_changes(changes) == (
        "embedding[0].tables: ['a*', 'b'] -> ['*']; dense.error_feedback: not given -> True"
    )
    many = text_of_changes({str(n): "0 -> 1" for n in range(9)})
    assert many.endswith("5: 0 -> 1; and 3 more")


def test_a_saved_config_may_be_older_or_newer_than_the_code():
    config = config_of()
    saved = json.loads(config_text(config))
    del saved["embedding"][0]["backward"]["nonfinite"]  # a field that had not been there
    assert changes_of(json.dumps(saved), config) == {}
    saved["embedding"][0]["forward"] = {"codec": "of_tomorrow"}
    changes = changes_of(json.dumps(saved), config)
    assert changes["embedding[0].forward.codec"] == "'of_tomorrow' -> 'identity'"


def test_ranks_are_named_with_their_values():
    by_rank = [{"seed": "0", "a": "1"}, {"seed": "1", "a": "1"}, {"seed": "0", "a": "1", "b": "2"}]
    assert text_of_ranks(by_rank) == (
        "seed: 0 on rank 0, 2; 1 on rank 1\nb: not given on rank 0, 1; 2 on rank 2"
    )
    assert text_of_ranks(by_rank[:1] * 3) == ""
    many = text_of_ranks([{"seed": "0"}] * 20 + [{"seed": "1"}])
    assert many == "seed: 0 on rank 0, 1, 2, 3, 4, 5, and 14 more; 1 on rank 20"
