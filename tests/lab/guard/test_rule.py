"""Configuration of the guard: its fields, ladders and their order."""

from itertools import pairwise

import pytest

from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Identity, Rowwise
from trec_qcomm.config import Config, TableRule, config_from_dict, config_to_dict
from trec_qcomm.ext.dct import ForwardMask, Threshold, TopK
from trec_qcomm.ext.dual_level.error_bound import OnlineClasses
from trec_qcomm.lab.guard.ladders import all_columns, bits_a_value, is_finer
from trec_qcomm.lab.guard.rule import GuardRule

EMBEDDING = [{"tables": "*", "forward": {"codec": "rowwise", "bits": 4}, "backward": "identity"}]

INT8, INT4 = ({"codec": "rowwise", "bits": bits} for bits in (8, 4))
ABSOLUTE = {"codec": "error_bounded", "bound": 0.1, "mode": "abs"}


def rule(forward, backward=None, **fields):
    return TableRule(tables="*", forward=forward, backward=backward or Identity(), **fields)


def rungs(guard, table_rule, direction="forward"):
    ladder = guard.ladders(table_rule)[direction]
    return list(ladder.codecs), ladder.start, ladder.lowest


def test_a_config_with_a_guard_is_written_and_read():
    guard = GuardRule(
        every=50,
        limit_ne=0.1,
        action="warn",
        tables="user_*",
        ladder=[Rowwise(2), Rowwise(8), Cast("bf16"), Identity()],
        backward_ladder=(Rowwise(4, "stochastic"),),
    )
    assert config_from_dict({"embedding": EMBEDDING, "guard": {}}).guard == GuardRule()
    data = config_to_dict(Config(embedding=[rule(Rowwise(4))], guard=guard))
    assert config_from_dict(data).guard == guard
    assert "guard" not in config_to_dict(config_from_dict({"embedding": EMBEDDING}))


def test_a_guard_without_tables_is_an_error():
    with pytest.raises(ValueError, match="guard: has nothing to watch without rules of embedding"):
        config_from_dict({"dense": {"codec": "float6"}, "guard": {}})


@pytest.mark.parametrize(
    ("guard", "message"),
    [
        (True, "guard: expected a mapping of every, limit_ne, "),
        ({"evry": 5}, "guard.evry: unknown key; allowed: every"),
        ({"every": 0}, "guard.every: 0 is not an integer >= 1"),
        ({"limit_ne": 0}, "guard.limit_ne: 0 is not a finite number > 0"),
        ({"limit_ne": float("nan")}, "guard.limit_ne: nan is not a finite number"),
        ({"action": "move"}, r"guard.action: 'move' is not one of \('switch', 'warn'\)"),
        ({"tables": []}, "guard.tables: expected a pattern"),
        ({"lower_after": 2.5}, "guard.lower_after: 2.5 is not an integer"),
        ({"patience": True}, "guard.patience: True is not an integer"),
        ({"on_unencodable": "exact"}, r"guard.on_unencodable: 'exact' is not one of"),
        ({"ladder": "rowwise"}, "guard.ladder: expected a list of codecs, got 'rowwise'"),
        ({"ladder": []}, "guard: ladder: expected a list of one or more codecs"),
        ({"ladder": ["int8"]}, r"guard.ladder\[0\]: unknown codec 'int8'"),
        (
            {"ladder": [{"codec": "threshold", "threshold": 0.1}]},
            r"guard: ladder\[0\]: threshold is for gradients only",
        ),
        ({"backward_ladder": ["forward_mask"]}, r"backward_ladder\[0\]: forward_mask needs the"),
        ({"ladder": [INT8, INT4]}, r"guard: ladder\[1\]: Rowwise\(bits=4.* is not finer than Row"),
        ({"ladder": [ABSOLUTE, INT4]}, r"ladder\[1\]: Rowwise.* and ErrorBounded.* do not compare"),
    ],
)
def test_errors_name_the_field(guard, message):
    with pytest.raises(ValueError, match=message):
        config_from_dict({"embedding": EMBEDDING, "guard": guard})


def test_finer_is_more_bits_in_the_worst_case():
    order = [Rowwise(2), ErrorBounded(0.05), Rowwise(4), ErrorBounded(0.01), Float6()]
    order += [ErrorBounded(0.01 / 4), Rowwise(8), Cast("fp16"), Identity()]
    assert [is_finer(b, a) for a, b in pairwise(order)] == [True] * 8
    assert [is_finer(a, b) for a, b in pairwise(order)] == [False] * 8
    assert is_finer(Cast("bf16"), Cast("fp16")) is False
    assert is_finer(ErrorBounded(0.1, "abs"), ErrorBounded(0.2, "abs")) is True
    assert is_finer(ErrorBounded(0.1, "abs"), ErrorBounded(0.2, "rel")) is None
    assert is_finer(Identity(), ErrorBounded(0.2, "abs")) is True
    assert is_finer(Threshold(0.1), Threshold(0.2)) is True
    # A bound as large as that of k bits over the whole range stands for k bits.
    for bits in (2, 4, 8):
        assert bits_a_value(ErrorBounded(1 / (2 * (2**bits - 1)))) == pytest.approx(bits)
        assert bits_a_value(Rowwise(bits)) == pytest.approx(bits + 0.25, abs=0.01)


def test_derived_rungs_begin_with_the_rule_s_codec():
    guard = GuardRule()
    bounded = ErrorBounded(0.01, encoder="rans")
    finer = [ErrorBounded(b, encoder="rans") for b in (0.01, 0.0025, 0.000625)]
    assert rungs(guard, rule(bounded)) == ([*finer, Identity()], 0, 0)
    classes = OnlineClasses(every=10, tight=0.002, base=0.01)
    tighter = [bounded, *(ErrorBounded(b, encoder="rans") for b in (0.0005, 0.000125))]
    assert rungs(guard, rule(bounded, classes=classes)) == ([*tighter, Identity()], 0, 0)

    four, eight = Rowwise(4, "stochastic"), Rowwise(8, "stochastic")
    assert rungs(guard, rule(four)) == ([four, eight, Cast("bf16"), Identity()], 0, 0)
    assert rungs(guard, rule(Rowwise(4), four), "backward")[0][1] == eight
    assert rungs(guard, rule(Float6()))[0] == [Float6(), Rowwise(8), Cast("bf16"), Identity()]
    assert rungs(guard, rule(Cast("fp16")))[0] == [Cast("fp16"), Identity()]


def test_forward_keeps_columns_where_backward_needs_them():
    masked = rule(TopK(density=0.2), ForwardMask())
    wanted = [TopK(density=0.2), TopK(density=0.4), TopK(density=0.8), all_columns()]
    assert rungs(GuardRule(), masked) == (wanted, 0, 0)
    given = GuardRule(ladder=[Rowwise(4), TopK(density=0.5), Cast("bf16")])
    assert rungs(given, masked)[0] == [TopK(density=0.2), TopK(density=0.5), all_columns()]
    assert rungs(given, masked, "backward")[0] == [ForwardMask(), Cast("bf16"), Identity()]


def test_a_codec_on_the_ladder_starts_there_and_another_below_what_is_finer():
    ladder = [Rowwise(2), Rowwise(4), Rowwise(8)]
    guard = GuardRule(ladder=ladder, backward_ladder=ladder)
    assert rungs(guard, rule(Rowwise(4))) == ([*ladder, Identity()], 1, 0)
    assert rungs(guard, rule(Identity(), Rowwise(4)), "backward") == ([*ladder, Identity()], 1, 1)
    bounded = ErrorBounded(0.02)  # 4.7 bits
    assert rungs(guard, rule(bounded)) == ([bounded, Rowwise(8), Identity()], 0, 0)
    absolute = ErrorBounded(0.02, "abs")  # which compares with none of them
    assert rungs(guard, rule(absolute)) == ([absolute, Identity()], 0, 0)
    assert rungs(guard, rule(Identity())) == ([Identity()], 0, 0)
    guard = GuardRule(ladder=[*ladder, Identity()])  # where it names what the table has
    assert rungs(guard, rule(Identity())) == ([*ladder, Identity()], 3, 0)


def test_bits_of_rungs():
    ladder = GuardRule().ladders(rule(Rowwise(4)))["forward"]
    assert ladder.bits == pytest.approx((4.25, 8.25, 16, 32), abs=0.02)
    absolute = GuardRule().ladders(rule(ErrorBounded(0.1, "abs")))["forward"]
    assert absolute.bits == (12, 14, 16, 32)  # a quarter of the bound takes 2 bits more
