"""Would 4 ranks learn as well with fewer bits? Asked of two towers, in one process, in one page.

python examples/emulate.py        some seconds; no launcher, no network
"""

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

import trec_qcomm

RANKS, BATCH, DIM, NUM_IDS, USER, ITEM = 4, 128, 16, 100, ["user", "seen"], ["item", "words"]
TASTES, TRAITS = 2 * torch.randn(2, NUM_IDS, 2, generator=torch.Generator().manual_seed(0))


class TwoTowers(nn.Module):
    """A user and an item as vectors; their product says whether the user clicks."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"embedding_dim": DIM, "num_embeddings": NUM_IDS}
        tables = [EmbeddingBagConfig(name=f, feature_names=[f], **sizes) for f in USER + ITEM]
        self.user, self.item = (EmbeddingBagCollection(tables=t) for t in (tables[:2], tables[2:]))
        self.user_tower, self.item_tower = nn.Linear(2 * DIM, 8), nn.Linear(2 * DIM, 8)

    def forward(self, user: KeyedJaggedTensor, item: KeyedJaggedTensor) -> torch.Tensor:
        user_vector = self.user_tower(self.user(user).values())
        return (user_vector * self.item_tower(self.item(item).values())).sum(dim=1)


def bags(features: list[str]) -> KeyedJaggedTensor:
    """Return one id a sample of the first feature, 0 to 4 of the second."""
    lengths = torch.cat([torch.ones(BATCH, dtype=torch.int64), torch.randint(5, (BATCH,))])
    return KeyedJaggedTensor(features, torch.randint(NUM_IDS, (int(lengths.sum()),)), None, lengths)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Take one step: the body of the loop that real ranks run."""
    user, item = bags(USER), bags(ITEM)
    tastes = (TASTES[user["user"].values()] * TRAITS[item["item"].values()]).sum(dim=1)
    clicks = torch.bernoulli(torch.sigmoid(tastes))  # by chance: no model knows them all
    loss = nn.functional.binary_cross_entropy_with_logits(model(user, item), clicks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def train(config: str, num_steps: int = 50, plan: str = "row_wise") -> float:
    """Return the mean loss of the last tenth of the steps."""
    torch.manual_seed(0)
    emulated = trec_qcomm.emulate(TwoTowers(), config, ranks=RANKS, plan=plan)
    optimizers = emulated.run(lambda model: torch.optim.Adam(model.parameters(), lr=0.05))
    emulated.run(lambda _, seed: torch.manual_seed(seed), range(RANKS))  # each has data of its own
    losses = [emulated.run(train_step, optimizers) for _ in range(num_steps)]
    mean = float(torch.tensor(losses[-num_steps // 10 :]).mean())
    print(f"{config}, {plan}: loss {mean:.4f}", emulated.qcomms[0].summary(), sep="\n")
    return mean


if __name__ == "__main__":
    train("fp32"), train("best")
