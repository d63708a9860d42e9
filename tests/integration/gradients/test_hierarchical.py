"""DDP's all-reduce by nodes, played and on ranks: state, other nodes, factors, refusals."""

import copy
import os
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.integration.gradients.test_device import each_alone, net, train
from trec_qcomm import Cast, ErrorBounded, GradientRule, Rowwise, compress_ddp
from trec_qcomm.comm.dense.error_feedback import owed
from trec_qcomm.config import Config, LowRank, TableGradientRule, config_from_dict, config_to_dict
from trec_qcomm.ext.dct import Threshold
from trec_qcomm.ext.dct.refresh import ThresholdRefresh
from trec_qcomm.integration.gradients import placement
from trec_qcomm.integration.gradients.placement import ranks_per_node
from trec_qcomm.lab.ranks.ranks import PlayedRanks
from trec_qcomm.testing import run_ranks

BLOCKS = {"block": 16, "min_numel": 20, "algorithm": "hierarchical", "error_feedback": True}
RULE = GradientRule(codec=Rowwise(4, "stochastic"), intra=Cast("bf16"), **BLOCKS)
FLAT = replace(RULE, algorithm="two_shot", intra=None)
RULES = {
    "feedback": RULE,
    "varying": replace(RULE, codec=ErrorBounded(0.05), intra=None, error_feedback=False),
    "factors": GradientRule(
        codec=Cast("bf16"), intra=Cast("bf16"), block=16, min_numel=8, algorithm="hierarchical",
        low_rank=LowRank(rank=2),
    ),
    "threshold": GradientRule(
        codec=Threshold(0.1), scope="global", **BLOCKS,
        refresh=ThresholdRefresh(every=1, density=0.1, sample=500),
    ),
}  # fmt: skip


def compressed(rule, **config):
    ddp = DistributedDataParallel(net(), bucket_cap_mb=0.0005)
    return ddp, compress_ddp(ddp, Config(dense=rule, **config))


def resumed():
    """Return by rule the gradients of a run, of one that resumes its last step, and counts."""
    results = {}
    for name, rule in RULES.items():
        ddp, handle = compressed(rule)
        with each_alone():
            straight = train(ddp, range(2))
        model, state = copy.deepcopy((ddp.module.state_dict(), handle.state_dict()))
        straight += train(ddp, [2])
        counts = handle.stats().to_dict()
        ddp, handle = compressed(rule)
        ddp.module.load_state_dict(model)
        handle.load_state_dict(state)
        results[name] = straight, train(ddp, [2]), counts, state
    return results


def on_two_nodes():
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    return resumed()


@pytest.fixture(scope="module")
def played():
    return PlayedRanks(4, ranks_per_node=2).run(resumed)


@pytest.mark.dist
def test_played_and_real_ranks_end_with_equal_bits_and_bytes(played):
    for ours, theirs in zip(played, run_ranks(on_two_nodes, 4), strict=True):
        for name in RULES:
            for means in zip(ours[name][0], theirs[name][0], played[0][name][0], strict=True):
                assert all(torch.equal(mean, means[0]) for mean in means), name
            for kind in ("dense", "intra_dense"):
                counts = [results[name][2][kind] for results in (ours, theirs)]
                for field in ("wire_nbytes", "raw_nbytes", "header_nbytes"):
                    assert counts[0][field] == counts[1][field] > 0


def test_a_resumed_run_is_the_same(played):
    for results in played:
        for name, (straight, again, _, state) in results.items():
            assert torch.equal(straight[2], again[0]), name
            (of_rank,) = (value for key, value in state.items() if key.startswith("rank"))
            if name != "varying":
                assert "0.weight" in of_rank["residuals"]


def owed_in(states):
    """Return {parameter: what all ranks owe to the mean}."""
    sums = {}
    for state in states:
        for of_rank in (value for key, value in state.items() if key.startswith("rank")):
            for name, sites in of_rank["residuals"].items():
                sums[name] = sums.get(name, 0) + owed(sites)
    return sums


@pytest.mark.parametrize(
    ("rule", "num_ranks", "per_node"),
    [(RULE, 4, 4), (RULE, 4, 1), (RULE, 6, 3), (FLAT, 4, 2), (FLAT, 2, 2)],
    ids=["one node", "nodes of one", "six ranks", "two_shot", "two ranks"],
)
def test_other_nodes_ranks_and_algorithms_go_on_with_the_sum(played, rule, num_ranks, per_node):
    states = [results["feedback"][-1] for results in played]
    together = {key: value for state in states for key, value in state.items()}

    def go_on():
        _, handle = compressed(rule)
        handle.load_state_dict(together, allow_changed_config=True)
        return handle.state_dict()

    def and_back():
        _, handle = compressed(RULE)
        handle.load_state_dict(merged, allow_changed_config=True)
        return handle.state_dict()

    before = owed_in(states)
    others = PlayedRanks(num_ranks, ranks_per_node=per_node).run(go_on)
    merged = {key: value for state in others for key, value in state.items()}
    back = PlayedRanks(4, ranks_per_node=2).run(and_back)
    for sums in (owed_in(others), owed_in(back)):
        for name, expected in before.items():
            assert bool(expected.any()) == (expected.numel() >= 20)
            assert torch.allclose(
                sums[name], expected, rtol=0, atol=2.0**-20 * expected.abs().max()
            )


def test_residuals_of_all_values_are_no_rank_s_own_business():
    """A rank that sends a shard only cannot go on with what it alone kept of all values."""

    def change():
        ddp, handle = compressed(FLAT)
        train(ddp, [0])
        _, other = compressed(RULE)
        with pytest.raises(ValueError, match=r"rank\dof4, .* missing; load the state of all ranks"):
            other.load_state_dict(handle.state_dict(), allow_changed_config=True)

    PlayedRanks(4, ranks_per_node=2).run(change)


def telescoping(rule, num_steps=5):
    """Return the sum of exact means, that of what came, and what this rank owes."""
    ddp, handle = compressed(rule)
    exact, came = 0, 0
    for step in range(num_steps):
        with handle.bypass():
            before = copy.deepcopy(ddp.module.state_dict())
            exact += train(ddp, [step])[0].double()
            ddp.module.load_state_dict(before)
        came += train(ddp, [step])[0].double()
    return exact, came, owed_in([handle.state_dict()])


def test_what_came_and_what_is_owed_are_the_gradients():
    """Even what the codec of the factors inside the node keeps back is owed."""
    rule = RULES["factors"]
    by_rank = PlayedRanks(4, ranks_per_node=2).run(telescoping, [rule] * 4)
    exact, came, _ = by_rank[0]
    sums = {}
    for _, _, owed_by_rank in by_rank:
        for parameter, kept in owed_by_rank.items():
            sums[parameter] = sums.get(parameter, 0) + kept
    names, numels = zip(*((name, p.numel()) for name, p in net().named_parameters()), strict=True)
    for name, apart in zip(names, (exact - came).split(numels), strict=True):
        if name in sums:
            error = (apart - sums[name].flatten()).abs().max()
            assert float(error) <= 2.0**-16 * float(exact.abs().max())
            assert apart.numel() < 20 or float(apart.abs().max()) > 20 * float(error)


# What is refused.


def test_where_ranks_lie_is_what_launchers_say(monkeypatch):
    def size_by(**environment):
        for name in (
            "LOCAL_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "TORCHREC_RESOLVED_POD_SIZE",
        ):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return ranks_per_node(dist.group.WORLD)

    def ask():
        assert size_by(LOCAL_WORLD_SIZE="2") == size_by(OMPI_COMM_WORLD_LOCAL_SIZE="2") == 2
        assert size_by(LOCAL_WORLD_SIZE="1", TORCHREC_RESOLVED_POD_SIZE="2") == 2
        with pytest.raises(ValueError, match=r"hierarchical: LOCAL_WORLD_SIZE, .* is not set"):
            size_by()
        for size in ("3", "8", "0", "two"):
            with pytest.raises(ValueError, match=f"nodes of LOCAL_WORLD_SIZE {size}"):
                size_by(LOCAL_WORLD_SIZE=size)
        some, (even, uneven) = (
            dist.get_rank(),
            (dist.new_group(ranks) for ranks in ([0, 2], [0, 1, 2])),
        )
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        if some in (0, 2):
            assert ranks_per_node(even) == 1
        if some < 3:
            with pytest.raises(ValueError, match=r"ranks \[0, 1, 2\], which are no equal parts"):
                ranks_per_node(uneven)
            ddp = DistributedDataParallel(net(), process_group=uneven)
            with pytest.raises(ValueError, match="no equal parts of nodes"):
                compress_ddp(ddp, Config(dense=RULE))

    PlayedRanks(4, ranks_per_node=2).run(ask)


def test_nodes_that_are_wrong_on_one_rank_are_an_error_on_all(monkeypatch):
    """Nodes of 4 and of 2 ranks are an example: those of 2 do not know of the others."""

    def size(_pg):
        if dist.get_rank() == 3:
            raise ValueError("4 ranks are not nodes of 3 each")
        return 2

    monkeypatch.setattr(placement, "ranks_per_node", size)

    def register():
        with pytest.raises(ValueError, match="nodes of the group differ") as raised:
            compress_ddp(DistributedDataParallel(net()), Config(dense=RULE))
        assert "4 ranks are not nodes of 3 each" in str(raised.value)

    PlayedRanks(4, ranks_per_node=2).run(register)


def test_files_name_both_hops():
    data = {
        "algorithm": "hierarchical",
        "intra": {"codec": "cast", "dtype": "bf16"},
        "cross": "float6",
    }
    config = config_from_dict({"dense": data})
    (rule,) = config.dense_rules
    assert rule.intra == Cast("bf16")
    assert config_to_dict(config)["dense"]["cross"]["codec"] == "float6"
    assert config_from_dict(config_to_dict(config)) == config
    assert config_from_dict({"dense": [data]}).dense_rules == (rule,)
    same = {"codec" if key == "cross" else key: value for key, value in data.items()}
    assert config_from_dict({"dense": same}) == config
    for changed, message in (
        ({"codec": "float6"}, r"dense: cross: is the same as codec"),
        ({"algorithm": "two_shot"}, r"dense: cross: only with algorithm: hierarchical"),
        ({"intra": {"codec": "cast", "dtype": "f8"}}, r"dense\.intra\.dtype"),
        ({"intra": "forward_mask"}, r"dense: intra: forward_mask is for"),
    ):
        with pytest.raises(ValueError, match=message):
            config_from_dict({"dense": data | changed})
    with pytest.raises(ValueError, match=r"^dense: cross: missing; give the codec of"):
        config_from_dict({"dense": {"algorithm": "hierarchical"}})
    with pytest.raises(ValueError, match="intra: only with algorithm: hierarchical, not"):
        config_from_dict({"dense": {"codec": "float6", "intra": "identity"}})
    with pytest.raises(ValueError, match="algorithm: 'hierarchical' is not one of"):
        TableGradientRule(codec=Cast("bf16"), algorithm="hierarchical")
