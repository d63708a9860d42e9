"""emulate() trains a model that is not DLRM as real ranks do, and says early what it cannot do."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan

import trec_qcomm
from tests.lab.ranks.two_towers import (
    TwoTowers,
    make_batch,
    make_model,
    make_optimizer,
    train,
    train_step,
    weights,
)
from tests.rank_programs import results_of, run_programs
from trec_qcomm.lab.ranks.model import load_tables, tables_of
from trec_qcomm.lab.ranks.plans import make_plan

NUM_RANKS, NUM_STEPS = 3, 3
CONFIG = {
    "embedding": [
        {
            "tables": ["*"],
            "forward": {"codec": "error_bounded", "bound": 0.02, "mode": "rel"},
            "backward": {"codec": "rowwise", "bits": 4, "rounding": "stochastic"},
            "unique_bags": "auto",
        }
    ],
    "dense": {"codec": {"codec": "rowwise", "bits": 8}, "block": 8, "min_numel": 8},
}
PLANS = {  # words and patterns; whether the tables' optimizers run in backward
    "default": (None, False),
    "default, optimizer in backward": (None, True),
    "by pattern": (
        {"u*": "column_wise", "history": "row_wise", "w*": "data_parallel", "c*": "row_wise"},
        True,
    ),
    "row-wise": ("row_wise", False),
}


def train_for_real(program):
    """Shard by hand and train, as the documents of TorchRec say."""
    plan, in_backward = program
    model, qcomm = make_model(in_backward), trec_qcomm.QComm.from_dict(CONFIG)
    arguments = qcomm.dmp_arguments()
    sharders = {sharder.module_type: sharder for sharder in arguments["sharders"]}
    tables = tables_of(model, sharders)
    places = {"num_ranks": NUM_RANKS, "ranks_per_node": NUM_RANKS}
    sharding_plan = make_plan(model, plan, sharders, **places)
    cpu = torch.device("cpu")
    dmp = DistributedModelParallel(module=model, device=cpu, plan=sharding_plan, **arguments)
    load_tables(dmp, tables)
    return train(dmp, NUM_STEPS)


@pytest.fixture(scope="module")
def real():
    return run_programs(train_for_real, NUM_RANKS, PLANS)


@pytest.mark.dist
@pytest.mark.parametrize("name", list(PLANS))
def test_equals_real_ranks(real, name):
    plan, in_backward = PLANS[name]
    model = make_model(in_backward)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    emulated = trec_qcomm.emulate(model, CONFIG, ranks=NUM_RANKS, plan=plan)
    optimizers, start = emulated.run(make_optimizer), emulated.run(weights)
    emulated.run(lambda model: torch.manual_seed(dist.get_rank()))
    fused = {name for dmp in emulated.models for name in dmp.fused_optimizer.params}
    assert len(fused) == (4 if name == "by pattern" else 5 if in_backward else 1)
    losses = []
    for step in range(NUM_STEPS):
        batches = [make_batch(step, rank) for rank in range(NUM_RANKS)]
        losses.append(emulated.run(train_step, optimizers, batches))
    held = emulated.run(weights)
    for rank, (their_losses, theirs) in enumerate(results_of(real[name])):
        assert [of_ranks[rank] for of_ranks in losses] == their_losses
        assert held[rank].keys() == theirs.keys()
        for key, value in theirs.items():
            assert torch.equal(held[rank][key], value), (rank, key)
            assert not torch.equal(start[rank][key], value), (rank, key)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key  # the user's own model stays as it is
    assert all(qcomm.stats().embedding_forward.wire_nbytes > 0 for qcomm in emulated.qcomms)


def test_a_loop_of_ones_own_runs_on_played_ranks(real):
    """A program that shards its model itself needs no other change than who calls it."""
    plan = PLANS["row-wise"]
    ranks = trec_qcomm.played_ranks(NUM_RANKS)
    for ours, theirs in zip(
        ranks.run(lambda: train_for_real(plan)), results_of(real["row-wise"]), strict=True
    ):
        assert ours[0] == theirs[0]


def test_counters_of_played_ranks_have_bytes_and_no_seconds():
    def counted():
        qcomm = trec_qcomm.QComm.from_dict(CONFIG)
        model = make_model(True)
        train(DistributedModelParallel(module=model, **qcomm.dmp_arguments()), NUM_STEPS)
        return str(qcomm.stats())

    for text in trec_qcomm.played_ranks(2).run(counted):
        for line in text.splitlines()[2:]:
            raw, *_, encode, wire, decode = line.split()[1:]
            assert float(raw) > 0
            assert [encode, wire, decode] == ["-"] * 3


def test_a_function_makes_the_model_on_every_rank():
    made = []

    def factory():
        made.append(dist.get_rank())
        return make_model()

    emulated = trec_qcomm.emulate(factory, "fp32", ranks=2)
    assert sorted(made) == [0, 1]
    exact = trec_qcomm.emulate(make_model(), "fp32", ranks=2)
    for ours, theirs in zip(emulated.run(weights), exact.run(weights), strict=True):
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_bypass_evaluates_exactly_and_ranks_agree():
    emulated = trec_qcomm.emulate(make_model(), CONFIG, ranks=2)

    def evaluate(model, qcomm, batch, exact):
        model.eval()
        with torch.no_grad():
            if not exact:
                return model(batch)
            with qcomm.bypass():
                return model(batch)

    batches = [make_batch(0, rank) for rank in range(2)]
    plain = make_model().eval()
    coded = emulated.run(evaluate, emulated.qcomms, batches, [False] * 2)
    exact = emulated.run(evaluate, emulated.qcomms, batches, [True] * 2)
    for rank, batch in enumerate(batches):
        expected = plain(batch)
        assert torch.equal(exact[rank], expected)
        assert not torch.equal(coded[rank], expected)


def refuse(text, *args, **options):
    with pytest.raises(ValueError, match=text):
        trec_qcomm.emulate(*args, **options)


def test_errors_name_what_is_wrong():
    model = make_model()
    refuse("ranks: 0 is not a whole number", model, "best", ranks=0)
    refuse("neither a file nor a preset", model, "bset")
    refuse("plan: 'diagonal' is not one of table_wise, row_wise", model, "best", plan="diagonal")
    refuse(
        "plan: 'usr' matches no table; the model has user, history, item, words, clicks",
        model,
        "best",
        plan={"usr": "row_wise"},
    )
    refuse(
        "plan: 'user': table_row_wise needs ranks_per_node", model, "best", plan="table_row_wise"
    )
    given = ShardingPlan({"user.bags": {"usr": None}})
    refuse("plan: 'user.bags' has no table 'usr'; it has user, history", model, "best", plan=given)
    refuse("plan: 'users' is no module to shard", model, "best", plan=ShardingPlan({"users": {}}))
    exact = {"codec": "identity"}
    config = {"embedding": [{"tables": ["none", "*"], "forward": exact, "backward": exact}]}
    refuse("'none'", model, config, ranks=2)
    refuse("table 'clicks' of an EmbeddingCollection needs an optimizer", TwoTowers(), "fp32")
    refuse("config: auto times a network", model, "auto")


def test_batches_must_be_as_many_as_ranks():
    emulated = trec_qcomm.emulate(nn.Linear(2, 1), "dense_float6", ranks=2)
    with pytest.raises(ValueError, match=r"argument 3 of train_step: 3 items for 2 ranks"):
        emulated.run(train_step, [None] * 2, [None] * 3)
    with pytest.raises(ValueError, match="argument 2 of train_step: 7 for 2 ranks; give a seq"):
        emulated.run(train_step, 7, [None] * 2)


def test_an_optimizer_in_backward_of_a_replicated_layer_is_refused():
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    model = make_model()
    apply_optimizer_in_backward(torch.optim.SGD, model.last.parameters(), {"lr": 0.1})
    refuse("'last.weight' has an optimizer in backward", model, "fp32")


def test_tables_lie_evenly():
    emulated = trec_qcomm.emulate(make_model(), "fp32", ranks=5)
    sizes = [
        sum(v.numel() for n, v in w.items() if ".bags." in n or "clicks" in n)
        for w in emulated.run(weights)
    ]
    assert len(set(sizes)) == 1  # five tables of one size on five ranks
