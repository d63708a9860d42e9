"""A two-tower model with multi-hot features, its batches and its training step, as a user has them.

Nothing here knows whether ranks are real or played.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

CPU = torch.device("cpu")
BATCH, NUM_IDS, DIM = 8, 40, 16
USER, ITEM, SEQUENCE = ["user", "seen", "bought"], ["item", "words"], ["clicks"]
Batch = tuple[KeyedJaggedTensor, KeyedJaggedTensor, KeyedJaggedTensor, Tensor]


def _options(name: str, features: list[str]) -> dict:
    sizes = {"embedding_dim": DIM, "num_embeddings": NUM_IDS}
    return {"name": name, "feature_names": features, **sizes}


class Tower(nn.Module):
    def __init__(self, tables: list[EmbeddingBagConfig], num_features: int) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(device=CPU, tables=tables)
        self.dense = nn.Sequential(nn.Linear(num_features * DIM, 8), nn.Dropout(0.25))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return self.dense(self.bags(features).values())


class TwoTowers(nn.Module):
    """User and item in one space, and a sequence of clicks of which the last one counts."""

    def __init__(self) -> None:
        super().__init__()
        shared = EmbeddingBagConfig(**_options("history", ["seen", "bought"]))
        self.user = Tower([EmbeddingBagConfig(**_options("user", ["user"])), shared], 3)
        words = EmbeddingBagConfig(**_options("words", ["words"]), pooling=PoolingType.MEAN)
        self.item = Tower([EmbeddingBagConfig(**_options("item", ["item"])), words], 2)
        self.clicks = EmbeddingCollection(
            device=CPU, tables=[EmbeddingConfig(**_options("clicks", ["clicks"]))]
        )
        self.last = nn.Linear(DIM, 8)

    def forward(self, batch: Batch) -> Tensor:
        user, item, clicks, _ = batch
        rows = self.clicks(clicks)["clicks"]
        user = self.user(user) + self.last(rows.values()[rows.offsets()[1:].long() - 1])
        return (user * self.item(item)).sum(dim=1)


def make_model(optimizer_in_backward: bool = False) -> nn.Module:
    """Return the model. Of clicks the optimizer always runs in backward, as it must on CPU."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = TwoTowers()
    tables = [model.clicks, *((model.user.bags, model.item.bags) * optimizer_in_backward)]
    parameters = [p for module in tables for p in module.parameters()]
    apply_optimizer_in_backward(torch.optim.Adagrad, parameters, {"lr": 0.1})
    return model


def _features(keys: list[str], generator: torch.Generator, least: int) -> KeyedJaggedTensor:
    lengths = torch.randint(least, 5, (len(keys) * BATCH,), generator=generator)
    values = torch.randint(NUM_IDS, (int(lengths.sum()),), generator=generator)
    return KeyedJaggedTensor(keys, values, lengths=lengths)


def make_batch(step: int, rank: int) -> Batch:
    generator = torch.Generator().manual_seed(100 * step + rank)
    features = (
        _features(keys, generator, int(keys == SEQUENCE)) for keys in (USER, ITEM, SEQUENCE)
    )
    return (*features, torch.randint(2, (BATCH,), generator=generator).float())


def make_optimizer(model: DistributedModelParallel) -> torch.optim.Optimizer:
    """Return Adam for all that no fused optimizer trains."""
    fused = {id(p) for group in model.fused_optimizer.param_groups for p in group["params"]}
    fused |= {id(p) for p in model.fused_optimizer.params.values()}
    return torch.optim.Adam([p for p in model.parameters() if id(p) not in fused], lr=0.02)


def train_step(
    model: DistributedModelParallel, optimizer: torch.optim.Optimizer, batch: Batch
) -> float:
    loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch[-1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def weights(model: DistributedModelParallel) -> dict[str, Tensor]:
    """Return a copy of what this rank holds."""
    held = {}
    for name, value in model.state_dict().items():
        parts = value.local_shards() if hasattr(value, "local_shards") else None
        tensors = [value] if parts is None else [shard.tensor for shard in parts]
        held |= {f"{name}[{n}]": t.detach().clone() for n, t in enumerate(tensors)}
    return held


def train(model: DistributedModelParallel, num_steps: int) -> tuple[list[float], dict[str, Tensor]]:
    """Train as a program does that shards its model itself."""
    optimizer = make_optimizer(model)
    torch.manual_seed(dist.get_rank())  # of dropout
    losses = [
        train_step(model, optimizer, make_batch(step, dist.get_rank())) for step in range(num_steps)
    ]
    return losses, weights(model)
