"""Every block of TRAINING.md runs, in its order, and does what the page says."""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingPlan

from trec_qcomm import QComm
from trec_qcomm.testing import run_ranks

PAGE = Path(__file__).parents[2] / "trec_qcomm" / "docs" / "TRAINING.md"
FEATURES = ["user", "item", "shop"]
NUM_IDS, DIM, BATCH = 50, 8, 6
FUSED_PARAMS = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.1}


def blocks() -> dict[str, list[str]]:
    """Return the page's blocks of code by heading."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {
        section.split("\n", 1)[0]: re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
        for section in sections
    }


class Model(nn.Module):
    """Three tables and a linear layer; the seed gives all ranks the same."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        tables = [
            EmbeddingBagConfig(
                name=f"t_{name}", feature_names=[name], embedding_dim=DIM, num_embeddings=NUM_IDS
            )
            for name in FEATURES
        ]
        self.bags = EmbeddingBagCollection(tables=tables)
        self.over = nn.Linear(len(FEATURES) * DIM, 1)

    def forward(self, features: KeyedJaggedTensor) -> tuple[torch.Tensor, torch.Tensor]:
        predictions = self.over(self.bags(features).values())
        return (predictions - 1).square().mean(), predictions.detach().clone()


def make_plan() -> ShardingPlan:
    """Return a plan of whole tables on the first and the last rank, and one cut by rows."""
    world_size = dist.get_world_size()
    shardings = (table_wise(rank=0), table_wise(rank=world_size - 1), row_wise())
    plan = construct_module_sharding_plan(
        Model().bags,
        {f"t_{name}": sharding for name, sharding in zip(FEATURES, shardings, strict=True)},
        world_size=world_size,
        local_size=world_size,
        device_type="cpu",
    )
    for table in plan.values():
        table.compute_kernel = EmbeddingComputeKernel.FUSED.value
    return ShardingPlan({"bags": plan})


def batches(first: int, count: int) -> list[KeyedJaggedTensor]:
    return [batch(number) for number in range(first, first + count)]


def batch(number: int) -> KeyedJaggedTensor:
    generator = torch.Generator().manual_seed(100 * number + dist.get_rank())
    ids = torch.randint(NUM_IDS, (len(FEATURES) * BATCH,), generator=generator)
    return KeyedJaggedTensor(FEATURES, ids, lengths=torch.ones(len(ids), dtype=torch.int32))


class Reader:
    """Runs blocks of the page one after another, as its reader would."""

    def __init__(self, folder: str) -> None:
        self.page = blocks()
        self.names = {
            "Model": Model, "device": torch.device("cpu"), "plan": make_plan(),
            "fused_params": FUSED_PARAMS, "scaler": torch.amp.GradScaler("cpu", init_scale=1.0),
            "train_batches": batches(0, 6), "test_batches": batches(50, 2),
            "folder": f"{folder}/ours", "stock_folder": f"{folder}/stock",
        }  # fmt: skip

    def run(self, heading: str, number: int = 0) -> None:
        exec(compile(self.page[heading][number], f"{PAGE.name}: {heading}", "exec"), self.names)

    def __getitem__(self, name: str):
        return self.names[name]


def losses(model, optimizer, steps: list[KeyedJaggedTensor]) -> list[float]:
    """Train by hand and return this rank's losses."""
    seen = []
    for step in steps:
        optimizer.zero_grad()
        loss, _ = model(step)
        loss.backward()
        optimizer.step()
        seen.append(float(loss.detach()))
    return seen


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def stock_scores(reader: Reader, model) -> list[torch.Tensor]:
    """Return what stock TorchRec predicts with the weights of `model`."""
    stock = stock_model()
    stock.load_state_dict(model.state_dict())
    with torch.no_grad():
        return [stock(batch)[1] for batch in reader["test_batches"]]


def stock_model() -> DistributedModelParallel:
    return DistributedModelParallel(
        module=Model(),
        device=torch.device("cpu"),
        plan=make_plan(),
        sharders=[EmbeddingBagCollectionSharder(fused_params=FUSED_PARAMS)],
    )


def evaluations(reader: Reader) -> dict[str, bool]:
    """Run the first sections. Return what the page claims, and whether it is so."""
    reader.run("The training")
    model, tests = reader["model"], reader["test_batches"]
    reader.run("Evaluate")
    with torch.no_grad():
        coded = [model(batch)[1] for batch in tests]
    claims = {
        "bypass is exact": same(reader["scores"], stock_scores(reader, model)),
        "without it is not": not same(reader["scores"], coded),
    }
    reader.run("Evaluate with a pipeline", 0)
    reader.run("Evaluate with a pipeline", 1)
    claims["one score a test batch"] = len(reader["scores_detached"]) == len(tests)
    after_3, after_10, trained = by_hand(reader)
    claims["the steps before"] = same(reader["scores_detached"], after_3)
    claims["the last steps"] = same(reader["scores_pipelined"], after_10)
    reader["pipeline"].detach()
    claims["evaluations disturb nothing"] = same_state(trained, model)
    return claims


def by_hand(reader: Reader) -> tuple[list[torch.Tensor], list[torch.Tensor], nn.Module]:
    """Train the page's twelve steps. Return exact scores after 3 and 10, and the model."""
    model, optimizer = reader["build"](qcomm := QComm.from_preset("int4"))
    steps, scores = [*batches(0, 6), *batches(0, 6)], []
    for first, last in ((0, 3), (3, 10)):
        losses(model, optimizer, steps[first:last])
        with torch.no_grad(), qcomm.bypass():
            scores.append([model(batch)[1] for batch in reader["test_batches"]])
    losses(model, optimizer, steps[10:])
    return *scores, model


def local(value) -> list[torch.Tensor]:
    """Return this rank's shards of a value, or the value."""
    sharded = hasattr(value, "local_shards")
    return [shard.tensor for shard in value.local_shards()] if sharded else [value]


def same_state(first, second) -> bool:
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(
        same(local(ours[name]), local(theirs[name])) for name in ours
    )


def checkpoints(reader: Reader) -> dict[str, bool]:
    """Run the sections on checkpoints of two ranks."""
    reader.run("Save, and go on", 0)
    straight = losses(reader["model"], reader["optimizer"], batches(20, 3))
    reader.run("Save, and go on", 1)
    resumed = losses(reader["model"], reader["optimizer"], batches(20, 3))
    claims = {"resumed is the same": resumed == straight}
    stock = stock_model()
    stock_optimizer = reader["CombinedOptimizer"]([stock.fused_optimizer, dense_of(reader, stock)])
    losses(stock, stock_optimizer, batches(30, 3))
    saved = {"model": stock, "optimizer": stock_optimizer}
    dcp.save(saved, checkpoint_id=reader["stock_folder"])
    reader.run("Start from a checkpoint of plain TorchRec")
    claims["weights of stock"] = same_state(reader["model"], stock)
    with torch.no_grad(), reader["qcomm"].bypass():
        exact = losses_of(reader["model"], batches(40, 2))
    claims["predicts as stock does"] = exact == losses_of(stock, batches(40, 2))
    claims["optimizer of stock"] = same_optimizers(reader["optimizer"], stock_optimizer)
    losses(reader["model"], reader["optimizer"], batches(40, 2))
    dcp.load(saved, checkpoint_id=reader["folder"])  # the other direction
    reader.run("Go on with another configuration")
    claims["weights of ours in stock"] = same_state(reader["model"], stock)
    claims["optimizer of ours in stock"] = same_optimizers(reader["optimizer"], stock_optimizer)
    losses(reader["model"], reader["optimizer"], batches(20, 1))
    claims["steps go on"] = set(steps_of(reader)) == {13}
    claims["another configuration is an error"] = "of another config: " in error_of_another(reader)
    return claims


def error_of_another(reader: Reader) -> str:
    """Return what loading the page's checkpoint says where another configuration is not allowed."""
    model, _ = reader["build"](qcomm := QComm.from_preset("int8"))
    try:
        dcp.load({"model": model, "trec_qcomm": qcomm}, checkpoint_id=reader["folder"])
    except ValueError as error:
        return str(error)
    return ""


def steps_of(reader: Reader) -> list[int]:
    return [int(step) for step in reader["qcomm"].state_dict()["steps"].values()]


def losses_of(model, steps: list[KeyedJaggedTensor]) -> list[float]:
    with torch.no_grad():
        return [float(model(step)[0]) for step in steps]


def dense_of(reader: Reader, model):
    parameters = dict(reader["in_backward_optimizer_filter"](model.named_parameters()))
    dense = reader["KeyedOptimizerWrapper"](parameters, lambda p: torch.optim.Adam(p, lr=0.001))
    dense.init_state()
    return dense


def same_optimizers(first, second) -> bool:
    """Return whether both have the same state of the dense layer and of this rank's tables."""

    def tensors(optimizer):
        state = optimizer.state_dict()["state"]
        flat = [(key, name, value) for key in sorted(state) for name, value in state[key].items()]
        return [(key, name, shard) for key, name, value in flat for shard in local(value)]

    ours, theirs = tensors(first), tensors(second)
    return [t[:2] for t in ours] == [t[:2] for t in theirs] and same(
        [t[2] for t in ours], [t[2] for t in theirs]
    )


def on_two_ranks(folder: str) -> dict[str, bool]:
    reader = Reader(folder)
    return evaluations(reader) | checkpoints(reader)


def on_three_ranks(folder: str) -> dict[str, bool]:
    reader = Reader(folder)
    reader.run("The training")
    reader.run("Go on with another number of ranks")
    reader.run("Scale the loss")
    steps = set(steps_of(reader))
    trained = losses(reader["model"], reader["optimizer"], batches(60, 2))
    return {"steps go on": steps == {12}, "it trains": all(map(bool, trained))}


@pytest.mark.dist
def test_every_block_runs_and_does_what_the_page_says(tmp_path: Path) -> None:
    for claims in run_ranks(on_two_ranks, 2, str(tmp_path), timeout_s=200):
        assert [claim for claim, is_so in claims.items() if not is_so] == []
    for claims in run_ranks(on_three_ranks, 3, str(tmp_path), timeout_s=100):
        assert [claim for claim, is_so in claims.items() if not is_so] == []


def test_the_test_runs_all_blocks() -> None:
    assert {heading: len(code) for heading, code in blocks().items()} == {
        "The training": 1,
        "Scale the loss": 1,
        "Evaluate": 1,
        "Evaluate with a pipeline": 2,
        "Save, and go on": 2,
        "Start from a checkpoint of plain TorchRec": 1,
        "Go on with another configuration": 1,
        "Go on with another number of ranks": 1,
    }
