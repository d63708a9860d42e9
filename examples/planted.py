"""Does a search find the one table that coarse codecs hurt? Two towers, in one page.

python -m examples.planted    two emulated ranks, a minute; after Ctrl-C it goes on

The towers are those of study.py. A click depends on user, item and on which ids the history
holds; tags say nothing. The rows of the history come with a large offset in each column, the same
for all ids, which the model takes off again: all that matters are small differences of large
values. A codec whose error is a share of the values' range loses them there, and nowhere else.
The plan that the search finds sends the history's rows with 8 bits, and all others with 4.
"""

from dataclasses import dataclass
from functools import partial

import torch

from examples import study
from trec_qcomm import Cast, Config, Identity, Rowwise, emulate
from trec_qcomm.lab.ranks.model import Emulated
from trec_qcomm.lab.search import search

PLANTED = "history"
OFFSETS = torch.linspace(-3, 3, study.DIM)  # of each column
CANDIDATES = {
    "forward": [Cast("bf16"), *(Rowwise(bits) for bits in (8, 4))],
    "backward": [Identity()],
}


class PlantedTowers(study.TwoTowers):
    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.bags.embedding_bags[f"t_{PLANTED}"].weight += OFFSETS

    def halves(self, features):
        user, item = super().halves(features)
        offsets = features[PLANTED].lengths()[:, None] * OFFSETS  # of the sums over bags
        return torch.cat([user[:, : study.DIM], user[:, study.DIM :] - offsets], dim=1), item


def batch(step):
    """Return a rank's samples of a step; odd ids of the history attract, even ones repel."""
    features, item_is_larger = study.batch(step)
    history = features[PLANTED]
    signs = 2.0 * (history.values() % 2) - 1
    liking = torch.segment_reduce(signs, "sum", lengths=history.lengths())
    chance = torch.sigmoid(4 * item_is_larger - 2 + liking)
    random = torch.Generator().manual_seed(int(features.values().sum()))
    return features, torch.bernoulli(chance, generator=random)


@dataclass
class PlantedModel:
    """A trained model, as a study and a search ask for it."""

    trained_with: Config
    emulated: Emulated
    metrics: dict[str, float]

    def evaluate(self, config):
        """Return the loss of the test with the codecs of another config."""
        emulated = self.emulated
        if config != self.trained_with:
            emulated = emulate(PlantedTowers(), config, ranks=2, fused_params=study.FUSED)
            states = [model.state_dict() for model in self.emulated.models]
            emulated.run(lambda model, state: model.load_state_dict(state), states)
        return {"loss": sum(emulated.run(score_rank)) / 2}


@torch.no_grad()
def score_rank(model):
    tests = map(batch, range(study.STEPS, study.STEPS + study.TEST_STEPS))
    losses = [study.loss_of(model(features), labels).item() for features, labels in tests]
    return sum(losses) / len(losses)


def train(config, seed, perturbation):
    """Train from a seed; this is the function that a study and a search ask for."""
    torch.manual_seed(seed)
    model = PlantedTowers()
    for parameter in model.parameters():
        parameter.data.mul_(1 + perturbation)
    emulated = emulate(model, config, ranks=2, fused_params=study.FUSED)
    loss, progressive = sum(emulated.run(partial(study.train_rank, batch=batch))) / 2
    metrics = {"loss": loss.item(), "progressive_loss": progressive.item()}
    return PlantedModel(config, emulated, metrics)


def find(path, rounds=1):
    """Search a codec for the rows of each table that together cost at most half a percent."""
    return search(
        train, CANDIDATES, budget=0.5, path=path, metrics=["loss", "progressive_loss"],
        unique_bags=False, calibration_seeds=3, verification_seeds=5, rounds=rounds, every=10,
        num_ranks=2,
    )  # fmt: skip


if __name__ == "__main__":
    result = find("runs/planted")
    print(result, result.text(), sep="\n\n")
