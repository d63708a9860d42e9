"""Where no rank has bags to merge the search pauses, on all ranks alike, and comes back by itself.

Two ranks are played in this process. Batches are of 8 samples and one table: all ids differ, or all
are equal.
"""

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

import trec_qcomm
from trec_qcomm.integration.ids import merge_pause, unique_bags

FUSED = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.5}
RANKS, SAMPLES, NUM_IDS = 2, 8, 64
DIFFERENT, EQUAL = range(SAMPLES), [3] * SAMPLES


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingBagConfig(
            name="t", feature_names=["f"], embedding_dim=4, num_embeddings=NUM_IDS
        )
        self.bags = EmbeddingBagCollection(tables=[table])

    def forward(self, ids: KeyedJaggedTensor) -> torch.Tensor:
        return self.bags(ids).values()


def batch(ids, pooling=1):
    values = torch.tensor([(i + p) % NUM_IDS for i in ids for p in range(pooling)])
    return KeyedJaggedTensor(["f"], values, lengths=torch.full((SAMPLES,), pooling))


@pytest.fixture
def searches(monkeypatch):
    """The rank of each search so far, with windows of 3 batches."""
    ranks, search = [], unique_bags.unique_bags

    def counted(*args, **options):
        ranks.append(dist.get_rank())
        return search(*args, **options)

    monkeypatch.setattr(merge_pause, "WINDOW", 3)
    monkeypatch.setattr(unique_bags, "unique_bags", counted)
    return ranks


def emulated(choice="auto", ids=None, model=None, fused=FUSED):
    exact = {"tables": "*", "forward": "identity", "backward": "identity", "unique_bags": choice}
    config = {"embedding": [exact]} | ({} if ids is None else {"ids": {"codec": ids}})
    return trec_qcomm.emulate(model or Bags(), config, ranks=RANKS, fused_params=fused)


def train(model, ids):
    rows = model(ids)
    rows.sum().backward()
    return rows.detach()


def number_of_searches(side, searches, *batches):
    """Return how many searches both ranks made while they trained on a batch."""
    before = len(searches)
    side.run(train, list(batches))
    return len(searches) - before


def test_the_search_pauses_and_comes_back_on_all_ranks(searches):
    side = emulated()
    different, equal = batch(DIFFERENT), batch(EQUAL)
    steps = [(different, different)] * 3 + [(different, equal)] + [(different, different)] * 3
    counts = [number_of_searches(side, searches, *step) for step in steps]
    assert counts == [2, 0, 0, 2, 2, 2, 2]  # one rank's equal bags are enough
    assert sorted(searches[:2]) == [0, 1]
    stats = [qcomm.stats().bags for qcomm in side.qcomms]
    assert [(s.num_bags, s.num_sent) for s in stats] == [(56, 56), (56, 49)]
    assert number_of_searches(side, searches, equal, different) == 0  # the pause is on again


def test_rows_are_the_same_in_a_pause(searches):
    model = Bags()
    sides = [emulated(choice, model=model) for choice in ("auto", False)]
    for ids in (DIFFERENT, EQUAL, range(5, 5 + SAMPLES)):
        auto, off = (side.run(train, [batch(ids)] * RANKS) for side in sides)
        assert all(torch.equal(a, b) for a, b in zip(auto, off, strict=True))
    assert len(searches) == RANKS  # of the first batch


def test_a_rank_without_samples_has_nothing_to_merge(searches):
    side, different = emulated(ids="packed"), batch(DIFFERENT)
    none = KeyedJaggedTensor(
        ["f"], torch.zeros(0, dtype=torch.int64), lengths=torch.zeros(0).long()
    )
    counts = [number_of_searches(side, searches, different, none) for _ in range(2)]
    assert counts == [2, 2]  # the other rank's ids were sorted
    side = emulated(ids="packed")
    assert [number_of_searches(side, searches, none, none) for _ in range(2)] == [2, 0]


@pytest.mark.parametrize(
    ("choice", "ids", "pooling", "expected"),
    [
        (True, None, 1, [2, 2]),
        ("auto", "packed", 1, [2, 2]),  # the search also sorts, and sorted ids pack well
        ("auto", "packed", 2, [2, 0]),
        ("auto", None, 2, [2, 0]),
    ],
)
def test_what_may_pause(searches, choice, ids, pooling, expected):
    side = emulated(choice, ids)
    bags = batch(DIFFERENT, pooling)
    assert [number_of_searches(side, searches, bags, bags) for _ in expected] == expected


def test_evaluation_does_not_count(searches):
    side, different = emulated(), batch(DIFFERENT)

    def predict(model, ids):
        with torch.no_grad():
            return model(ids)

    side.run(predict, [different] * RANKS)
    assert len(searches) == RANKS  # before training nothing is known
    for expected in (2, 0):
        assert number_of_searches(side, searches, different, different) == expected
        before = len(searches)
        side.run(predict, [different] * RANKS)
        assert len(searches) == before
    assert number_of_searches(side, searches, different, different) == 0
    assert number_of_searches(side, searches, different, different) == 2  # the fourth batch


def test_a_resumed_run_pauses_where_the_other_would(searches):
    first, different = emulated(), batch(DIFFERENT)
    for _ in range(2):
        first.run(train, [different] * RANKS)
    states = [qcomm.state_dict() for qcomm in first.qcomms]
    resumed = emulated()
    resumed.run(lambda _, qcomm, state: qcomm.load_state_dict(state), resumed.qcomms, states)
    counts = [
        [number_of_searches(side, searches, different, different) for _ in range(3)]
        for side in (first, resumed)
    ]
    assert counts == [[0, 2, 0]] * 2


def test_the_state_is_that_of_the_last_batch_that_was_looked_up(searches):
    """A pipeline sends ids ahead of the lookup; a resumed run sends these again."""
    side = emulated()

    def send_ahead(model, ids):
        module = model.module.bags
        module.input_dist(module.create_context(), ids).wait().wait()

    side.run(train, [batch(DIFFERENT)] * RANKS)
    side.run(send_ahead, [batch(DIFFERENT)] * RANKS)
    assert side.qcomms[0].state_dict()["merge_pauses"]["bags/table_wise"].tolist() == [1, 1]
