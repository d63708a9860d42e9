"""May a two-tower model's rows be sent with fewer bits? A study of it in one page.

python examples/study.py      two emulated ranks, a minute; after Ctrl-C it goes on
"""

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor

from trec_qcomm import emulate, quality

FEATURES = {"user": 1, "history": 8, "item": 1, "tags": 4}  # ids a sample, at most
NUM_IDS, DIM, BATCH, STEPS, TEST_STEPS = 200, 16, 256, 40, 10
FUSED = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.1}
LIMITS = quality.Limits(mean=0.5, upper=1.0, seeds=10)  # percent; trec_qcomm/docs/QUALITY.md


class TwoTowers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        sizes = {"embedding_dim": DIM, "num_embeddings": NUM_IDS}
        tables = [EmbeddingBagConfig(name=f"t_{f}", feature_names=[f], **sizes) for f in FEATURES]
        self.bags = EmbeddingBagCollection(tables=tables, device=torch.device("cpu"))
        self.towers = torch.nn.ModuleList(torch.nn.Linear(2 * DIM, DIM) for _ in range(2))

    def halves(self, features):
        """Return the pooled rows of the user's features, and those of the item's."""
        return KeyedTensor.regroup([self.bags(features)], [["user", "history"], ["item", "tags"]])

    def forward(self, features):
        halves = zip(self.towers, self.halves(features), strict=True)
        user, item = (tower(half) for tower, half in halves)
        return (user * item).sum(1)


def batch(step):
    """Return a rank's samples of a step: lists of ids, and whether user and item go together."""
    random = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    most = torch.tensor(list(FEATURES.values())).repeat_interleave(BATCH)
    lengths = 1 + (torch.rand(len(most), generator=random) * most).long()
    ids = (torch.rand(int(lengths.sum()), generator=random) ** 2 * NUM_IDS).long()
    features = KeyedJaggedTensor(list(FEATURES), ids, lengths=lengths)
    return features, (features["user"].values() < features["item"].values()).float()


def train_rank(model, batch=batch):
    dense = [p for name, p in model.named_parameters() if "towers" in name]
    optimizer, losses = torch.optim.Adam(dense, lr=0.01), []
    for features, labels in map(batch, range(STEPS + TEST_STEPS)):
        with torch.set_grad_enabled(len(losses) < STEPS):  # the other batches are the test
            loss = loss_of(model(features), labels)
        losses.append(loss.item())
        if loss.requires_grad:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return torch.tensor([sum(losses[STEPS:]) / TEST_STEPS, sum(losses[:STEPS]) / STEPS])


def train(config, seed, perturbation):
    """Train from a seed; this is the function that a study asks for."""
    torch.manual_seed(seed)
    model = TwoTowers()
    for parameter in model.parameters():
        parameter.data.mul_(1 + perturbation)
    loss, progressive = sum(emulate(model, config, ranks=2, fused_params=FUSED).run(train_rank)) / 2
    return {"loss": loss.item(), "progressive_loss": progressive.item()}


if __name__ == "__main__":
    limits = {"loss": LIMITS, "progressive_loss": LIMITS}
    print(quality.study(train, ["int8", "papers/int2"], 10, limits=limits, path="runs/study.jsonl"))
