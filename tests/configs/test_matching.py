"""Rules that hold for no name are errors once the names are known."""

import pytest

from trec_qcomm import Config, Identity, TableRule


def rules(*patterns):
    return [TableRule(tables=p, forward=Identity(), backward=Identity()) for p in patterns]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["*", "user_*"], r"embedding\[1\]\.tables: embedding\[0\] before it takes all its tables"),
        (
            ["user_id", "*", ["item_id", "user_id"]],
            r"\[2\]\.tables: embedding\[0\] and .*\[1\] before",
        ),
        (
            ["user_*", "*_id", "*_[ip]*"],
            r"x\.yaml: embedding\[2\]\.tables: embedding\[0\] and embedding\[1\] before it takes "
            "all its tables: item_id, user_id",
        ),
        (["*", "ad_*"], r"x\.yaml: .*\[1\]\.tables: 'ad_\*' matches no table; the model has: item"),
    ],
)
def test_a_rule_that_holds_for_no_table_is_an_error(patterns, message):
    config = Config(embedding=rules(*patterns), source="x.yaml")
    with pytest.raises(ValueError, match=message):
        config.check_patterns(["user_id", "item_id"])


@pytest.mark.parametrize("patterns", [["user_id", "*"], ["u*", ["user_id", "item_id"]], ["*"]])
def test_a_rule_of_which_something_is_left_is_none(patterns):
    Config(embedding=rules(*patterns)).check_patterns(["user_id", "item_id"])
