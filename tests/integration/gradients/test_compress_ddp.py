"""compress_ddp: a DDP outside TorchRec, from every form of a config; bypass, statistics, state."""

import copy
from dataclasses import replace
from unittest import TestCase

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

from tests.integration.gradients.test_device import each_alone, net, train
from trec_qcomm import Config, Fbgemm, GradientRule, Rowwise, compress_ddp
from trec_qcomm.config import LowRank
from trec_qcomm.integration.checkpoint import load_of_all_ranks
from trec_qcomm.lab.debug.rule import DebugRule
from trec_qcomm.testing import run_ranks

FIELDS = {"block": 16, "min_numel": 20, "algorithm": "two_shot", "error_feedback": True}
RULE = GradientRule(codec=Rowwise(4), **FIELDS)
MAPPING = {"dense": {"codec": {"codec": "rowwise", "bits": 4}, **FIELDS}}


def compressed(config):
    ddp = DistributedDataParallel(net())
    return ddp, compress_ddp(ddp, config)


def every_form(yaml):
    """Return the gradients of two steps by every form of one config, and by a preset."""
    forms = [Config(dense=RULE), MAPPING, yaml, str(yaml), "dense_float6"]
    return [train(compressed(form)[0], range(2)) for form in forms]


def exact_and_counted():
    """Return DDP's own gradients, bypassed ones, and statistics without and with bypass."""
    expected = train(DistributedDataParallel(net()), range(2))
    ddp, handle = compressed(Config(dense=RULE))
    with handle.bypass():
        bypassed = train(ddp, range(2))
    exact = handle.stats().to_dict()
    handle.reset_stats()
    train(ddp, range(2))
    assert "a step, 2 steps" in handle.summary()
    return expected, bypassed, exact, handle.stats().to_dict()


def resumed(folder):
    """Return the last steps of a run that did not stop, and of one that goes on from state."""
    ddp, handle = compressed(Config(dense=RULE))
    train(ddp, range(2))
    model, state = copy.deepcopy((ddp.module.state_dict(), handle.state_dict()))
    dcp.save({"model": model, "trec_qcomm": handle}, checkpoint_id=folder)
    runs = [train(ddp, range(2, 4))]
    for load in (
        lambda again: again.load_state_dict(state),
        lambda again: dcp.load({"trec_qcomm": again}, checkpoint_id=folder),
        lambda again: again.load_resized(folder),
    ):
        ddp, again = compressed(Config(dense=RULE))
        ddp.module.load_state_dict(model)
        load(again)
        runs.append(train(ddp, range(2, 4)))
    return runs


RULES = [
    MAPPING["dense"] | {"parameters": "0.*"},
    MAPPING["dense"] | {"parameters": ["*"], "codec": "float6", "error_feedback": False},
]


LOW_RANK = [
    {
        "parameters": "0.weight", "codec": "float6", "block": 16, "min_numel": 8,
        "low_rank": {"rank": 3},
    },
    {
        "parameters": "*.weight", "codec": "float6", "block": 16, "min_numel": 8,
        "low_rank": {"rank": 2},
    },
    {"codec": {"codec": "cast", "dtype": "bf16"}, "min_numel": 20, "block": 16},
]  # fmt: skip


def low_rank(folder):
    """Return gradients of a run in small buckets, of its resumption, and what one rank owes."""
    config = {"dense": [rule | {"algorithm": "two_shot"} for rule in LOW_RANK]}

    def of_small_buckets(**options):
        ddp = DistributedDataParallel(net(), bucket_cap_mb=0.0001, **options)
        return ddp, compress_ddp(ddp, config)

    ddp, handle = of_small_buckets()
    with each_alone():
        straight = train(ddp, range(2))
        model = copy.deepcopy(ddp.module.state_dict())
        dcp.save({"trec_qcomm": handle}, checkpoint_id=folder)
        straight += train(ddp, range(2, 4))
    whole, watched = compressed(config | {"debug": {"every": 1, "tables": "0.weight"}})
    in_one_bucket = train(whole, range(4))
    assert "0.weight (left factor), dense" in watched.debug_summary()
    ddp, again = of_small_buckets()
    ddp.module.load_state_dict(model)
    again.load_resized(folder)
    resumed = train(ddp, range(2, 4))
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    _, one = of_small_buckets(process_group=alone)
    one.load_resized(folder)
    (resized,) = (v for k, v in one.state_dict().items() if k != "config")
    saved = load_of_all_ranks(folder, "trec_qcomm")
    saved.pop("config")
    return straight, in_one_bucket, resumed, resized, saved


def refused(yaml):
    """Call it with what it does not take; the DDP is as before."""
    ddp = DistributedDataParallel(net())
    for config, message in (
        (5, "config: expected a Config, a mapping, the path of a YAML file or the name of a pre"),
        (None, "config: expected a Config, .* got None"),
        (
            "dense_int3",
            "'dense_int3' is neither a file nor a preset; presets: auto, best, .*dense_int8",
        ),
        ("int4", "preset int4: dense: missing"),
        (
            {"dense": {"codec": "float6", "block": 5000, "min_numel": 20}},
            r"block: 5000: no parameter has so many values; the largest, '.*weight', has \d+",
        ),
        ({"dense": RULES[:1]}, r"config: dense: no pattern matches parameter '2.weight'; pat.*0\."),
        (
            {"dense": [MAPPING["dense"] | {"parameters": "1.*"}, *RULES]},
            r"config: dense\[0\]\.parameters: '1\.\*' matches no parameter; the model has: 0\.bias",
        ),
        (
            {"dense": [RULES[0], RULES[1] | {"block": 80}]},
            r"dense\[1\]\.block: 80: no parameter has so many values; .*'2.weight', has 72",
        ),
        (
            {"dense": [*({**RULES[0], "parameters": p} for p in ("[02].w*", "*.bias", "[02].*"))]},
            r"dense\[2\]\.parameters: dense\[0\] and dense\[1\] before it takes all its parameters",
        ),
        (
            {"dense": MAPPING["dense"] | {"parameters": "?.*", "low_rank": {"rank": 7}}},
            r"dense\.low_rank\.rank: 7: factors are smaller than none of the parameters: 0\.weight",
        ),
        (
            {"dense": MAPPING["dense"] | {"low_rank": 4}},
            r"dense\.low_rank: expected a mapping of ra",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            compress_ddp(ddp, config)
    with pytest.raises(FileNotFoundError, match=r"No such file.*none\.yaml"):
        compress_ddp(ddp, yaml.with_name("none.yaml"))
    with pytest.raises(ValueError, match="ddp: expected a DistributedDataParallel around the Seq"):
        compress_ddp(net(), "dense_float6")
    compress_ddp(ddp, yaml)


def debugged():
    """Check what is said of a low rank for no parameter, and of a debugger. Return its summary."""
    with TestCase().assertLogs("trec_qcomm", "WARNING") as logs:
        compressed(Config(dense=replace(RULE, low_rank=LowRank(rank=7))))
    assert "low_rank.rank: 7: factors are smaller than none of the parameters" in logs.output[0]
    assert compressed(Config(dense=RULE))[1].debug_summary() == "debug: off"
    watched, handle = compressed(Config(dense=RULE, debug=DebugRule(every=1)))
    train(watched, range(2))
    odd = Config(dense=replace(RULE, block=20), debug=DebugRule(shadow=[Fbgemm("int2")]))
    ddp = DistributedDataParallel(net())
    with pytest.raises(ValueError, match=r"debug.shadow\[0\]: dense.block: codec fbgemm"):
        compress_ddp(ddp, odd)
    compress_ddp(ddp, Config(dense=RULE))  # it is as before
    return handle.debug_summary()


def everything(folder):
    yaml = folder / "mine.yaml"
    refused(yaml)
    more = debugged()
    checkpoint = resumed(folder / "checkpoint")
    factors = low_rank(folder / "low_rank")
    return every_form(yaml), exact_and_counted(), checkpoint, factors, more


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compress_ddp")
    (folder / "mine.yaml").write_text(
        "dense:\n  codec: {codec: rowwise, bits: 4}\n  block: 16\n  min_numel: 20\n"
        "  algorithm: two_shot\n  error_feedback: true\n"
    )
    return run_ranks(everything, 2, folder)


def same(a, b):
    return all(map(torch.equal, a, b))


@pytest.mark.dist
def test_every_form_of_a_config_is_the_same(ranks):
    for (config, *others, preset), *_ in ranks:
        assert all(same(config, other) for other in others)
        assert not same(config, preset)
    (one, *_), (other, *_) = (forms for forms, *_ in ranks)
    assert same(one, other)  # the ranks have equal gradients


@pytest.mark.dist
def test_bypass_is_what_ddp_does_and_stats_count_bytes(ranks):
    for _, (expected, bypassed, exact, coded), *_ in ranks:
        assert same(expected, bypassed)
        assert all(bool(gradients.any()) for gradients in bypassed)
        assert 0 < coded["dense"]["wire_nbytes"] < exact["dense"]["wire_nbytes"]
        assert coded["dense"]["raw_nbytes"] == exact["dense"]["raw_nbytes"]


@pytest.mark.dist
def test_state_and_checkpoints_resume_the_same_training(ranks):
    for _, _, (straight, *others), *_ in ranks:
        assert len(others) == 3
        assert all(same(straight, other) for other in others)


@pytest.mark.dist
def test_factors_outlive_buckets_checkpoints_and_ranks(ranks):
    runs = [results[3] for results in ranks]
    for straight, in_one_bucket, resumed, resized, saved in runs:
        assert same(straight, runs[0][0])  # the ranks have equal gradients
        assert same(straight, in_one_bucket)
        assert same(straight[2:], resumed)
        states = list(saved.values())
        assert len(states) == 2
        for name, rank in {"0.weight": 3, "2.weight": 2}.items():
            of_all = [state["residuals"][name]["contribution"] for state in states]
            owed_now = resized["residuals"][name]["contribution"]
            assert bool(owed_now.any())
            assert torch.allclose(owed_now, sum(of_all), rtol=2.0**-22, atol=0)
            factors = [state["low_rank"][name] for state in states]
            assert torch.equal(resized["low_rank"][name], factors[0])
            assert torch.equal(*factors)
            assert len(factors[0]) == rank
        assert resized["low_rank"].keys() == {"0.weight", "2.weight"}


@pytest.mark.dist
def test_the_debugger_tells_what_it_saw(ranks):
    for *_, summary in ranks:
        assert "steps 0 to 1 (2 measured)" in summary
