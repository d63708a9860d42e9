"""Dense rules by parameter: each parameter fares as if its rule were alone. Ranks are played."""

from dataclasses import replace

import pytest
import torch

from tests.comm.dense.reductions import watched
from trec_qcomm import Config, Float6, GradientRule, Identity, Rowwise, Threshold
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.config import config_from_dict, config_to_dict, load_config
from trec_qcomm.config.gradients import parameter_patterns, rules_of
from trec_qcomm.core.counters import Traffic
from trec_qcomm.ext.dct.refresh import ThresholdRefresh
from trec_qcomm.integration.gradients.reduction import make_reduction
from trec_qcomm.lab.ranks.rounds import play

NUMELS = {"a.weight": 1000, "a.bias": 30, "b.weight": 700, "b.bias": 40, "c.weight": 500}
REFRESH = ThresholdRefresh(every=2, density=0.1, sample="all")
RULES = (
    GradientRule(
        parameters="a.*", codec=Rowwise(4, "stochastic"), block=16, min_numel=20,
        error_feedback=True, algorithm="two_shot",
    ),
    GradientRule(parameters="b.*", codec=Float6(), block=32, algorithm="two_shot"),
    GradientRule(
        codec=Threshold(0.1), block=8, error_feedback=True, refresh=REFRESH, scope="global",
        algorithm="two_shot",
    ),
)  # fmt: skip
LAYER = replace(RULES[0], codec=Threshold(0.1), refresh=REFRESH)
SETS = {"three": RULES, "layer and global": (LAYER, RULES[2])}


def shapes(rules):
    numbers = {name: parameter_patterns(rules).number_of(name) for name in NUMELS}
    rules = rules_of(rules)
    return [ParameterShape(n, NUMELS[n], rules[k].block, k) for n, k in numbers.items()]


def ranks(rules, world_size, traffic):
    return [
        make_reduction(rules, shapes(rules), rank, world_size, traffic[rank], seed=3)
        for rank in range(world_size)
    ]


def gradients(step, rank):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return {name: torch.randn(numel, generator=generator) for name, numel in NUMELS.items()}


def reduced(rules, world_size, steps=3):
    """Return the means by step and parameter, the reductions and their number of messages."""
    traffic = [Traffic("dense", ["all"]) for _ in range(world_size)]
    reductions = ranks(rules, world_size, traffic)
    means, num_rounds = [], 0
    order = list(NUMELS)
    for step in range(steps):
        names = order if step != 2 else order[::-1]  # as DDP after its first step
        by_name = {shape.name: shape for shape in shapes(rules)}
        parts = [by_name[name] for name in names]
        buckets = [torch.cat([gradients(step, r)[n] for n in names]) for r in range(world_size)]
        rounds = [r.start(parts, b) for r, b in zip(reductions, buckets, strict=True)]
        counted = []
        play([watched(r, lambda wanted, sent=counted: sent.extend(wanted.sends)) for r in rounds])
        num_rounds += len(counted)
        assert all(torch.equal(bucket, buckets[0]) for bucket in buckets)
        means.append(dict(zip(names, buckets[0].split([NUMELS[n] for n in names]), strict=True)))
    return means, reductions, num_rounds


@pytest.mark.parametrize(
    ("algorithm", "world_size", "kind"),
    [
        ("two_shot", 1, "three"),
        ("two_shot", 2, "layer and global"),
        ("ring", 2, "three"),
        ("recursive_doubling", 3, "three"),
    ],
)
def test_each_rule_is_as_alone_in_as_many_messages(algorithm, world_size, kind):
    rules = tuple(replace(rule, algorithm=algorithm) for rule in SETS[kind])
    together, reductions, num_messages = reduced(rules, world_size)
    holder = {shape.name: shape.coding for shape in shapes(rules)}
    state = reductions[0].error_feedback.state_dict()
    assert state.keys() == {name for name, k in holder.items() if rules[k].error_feedback}
    for number, rule in enumerate(rules):
        alone = replace(rule, parameters="*")
        names = [name for name, k in holder.items() if k == number]
        if rule.scope == "global":  # its threshold is that of its parameters alone
            others = [name for name in NUMELS if name not in names]
            rest = GradientRule(parameters=others, codec=Identity(), algorithm=algorithm)
            alone = (rest, alone)
        means, own_reductions, messages = reduced(alone, world_size)
        assert messages == num_messages
        for name in names:
            for step, expected in zip(together, means, strict=True):
                assert torch.equal(step[name], expected[name]), (rule, name)
            if rule.error_feedback:
                own_state = own_reductions[0].error_feedback.state_dict()[name]
                assert all(torch.equal(state[name][site], own_state[site]) for site in own_state)


def test_lists_survive_a_round_trip_and_one_rule_stays_a_mapping(tmp_path):
    rules = [{"parameters": "a.*", "codec": "float6", "block": 64}, {"codec": "identity"}]
    config = config_from_dict({"dense": rules})
    assert config.dense == config.dense_rules == (
        GradientRule(parameters=["a.*"], codec=Float6(), block=64),
        GradientRule(codec=Identity()),
    )  # fmt: skip
    assert config_from_dict(config_to_dict(config)) == config
    (tmp_path / "mine.yaml").write_text(
        "dense:\n  - {parameters: [a.*], codec: float6, block: 64}\n  - {codec: identity}\n"
    )
    assert load_config(tmp_path / "mine.yaml").dense == config.dense
    one = config_from_dict({"dense": {"codec": "float6"}})
    assert (one.dense,) == one.dense_rules
    assert config_to_dict(one)["dense"]["codec"]["codec"] == "float6"
    assert "parameters" not in config_to_dict(one)["dense"]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([], "dense: expected a rule, or a list of one or more rules"),
        ([{"codec": "float6"}, {"codec": "zip"}], r"dense\[1\]\.codec: unknown codec 'zip'"),
        ([{"codec": "float6", "parameters": []}], r"dense\[0\]\.parameters: expected a pattern"),
        (
            [{"parameters": "a.*", "codec": "float6", "algorithm": "ring"}, {"codec": "identity"}],
            r"dense\[1\]\.algorithm: 'two_shot', but dense\[0\] has 'ring'; .*one message",
        ),
        (
            [{"parameters": "a.*", "codec": "float6", "own_group": True}, {"codec": "identity"}],
            r"dense\[1\]\.own_group: False, but dense\[0\] has True",
        ),
    ],
)
def test_a_wrong_list_names_rule_and_field(rules, message):
    with pytest.raises(ValueError, match=message):
        config_from_dict({"dense": rules})


def test_a_list_of_anything_else_is_refused():
    for rules in (["float6"], GradientRule, [GradientRule]):
        with pytest.raises(ValueError, match=r"dense(\[0\])?: expected .* \(GradientRule\)"):
            Config(dense=rules)
