"""Bags made of single ids: their sizes, that they stay the same, and how often they repeat."""

import numpy as np
import pytest
from data.dataset import Batches, Dataset, prepare
from data.multi_hot import POOLING, distinct_shares, with_bags
from data.samples import Samples
from data.synthetic import generate

DATASET = prepare(generate(3000, seed=5), min_count=2, hash_buckets=None)


def bags_of(dataset: Dataset, feature: int) -> np.ndarray:
    return dataset.rows[:1000].ids_of(feature)


@pytest.mark.parametrize("fixed_share", [0.0, 0.4, 1.0])
def test_bags_begin_with_the_samples_id_and_repeat_as_asked(fixed_share: float) -> None:
    made = with_bags(DATASET, fixed_share=fixed_share, seed=3)
    assert made.pooling == [*POOLING]
    for feature in (0, 5, 20):
        bags, ids = bags_of(made, feature), bags_of(DATASET, feature)[:, 0]
        assert bags.shape == (1000, POOLING[feature])
        assert np.array_equal(bags[:, 0], ids)
        assert 0 <= bags.min() <= bags.max() < DATASET.num_embeddings[feature]
    num_bags, num_ids = (len(np.unique(bags_of(d, 20), axis=0)) for d in (made, DATASET))
    if fixed_share == 1:
        assert num_bags == num_ids
    elif fixed_share == 0:
        assert num_bags == 1000
    else:  # 600 bags drawn anew, +- 5 standard deviations, and one for each id of the others
        assert 522 < num_bags < 678 + num_ids


def test_a_bag_does_not_depend_on_the_batch_or_the_piece() -> None:
    made = with_bags(DATASET, fixed_share=0.5)
    (piece,) = DATASET.rows.pieces
    cut = Dataset(Samples([piece.cut(0, 70), piece.cut(70, 3000)]), 2571, DATASET.num_embeddings)
    other = with_bags(cut, fixed_share=0.5)
    whole = made.rows[:128].to_batch().sparse_features
    for world_size, dataset in ((1, other), (2, made), (2, other)):
        parts = [
            Batches(dataset.train, 128 // world_size, rank, world_size, drop_last=True)[0]
            for rank in range(world_size)
        ]
        for k, feature in enumerate(made.features):
            values = np.concatenate([p.sparse_features[feature].values() for p in parts])
            assert values.tolist() == whole[feature].values().tolist()
            lengths = parts[0].sparse_features[feature].lengths()
            assert lengths.tolist() == [POOLING[k]] * (128 // world_size)


def test_shares_of_distinct_bags_and_ids_are_counted() -> None:
    single = distinct_shares(DATASET.rows[:512].to_batch())
    assert all(bags == ids for bags, ids in single.values())
    fixed = distinct_shares(with_bags(DATASET).rows[:512].to_batch())
    anew = distinct_shares(with_bags(DATASET, fixed_share=0).rows[:512].to_batch())
    for k, feature in enumerate(DATASET.features):
        assert fixed[feature][0] == single[feature][0]
        assert anew[feature][0] >= single[feature][0]
        assert POOLING[k] > 1 or anew[feature] == single[feature]
    assert anew["C21"][0] == 1.0
    assert anew["C21"][1] < 0.1


def test_bags_are_not_made_of_bags() -> None:
    with pytest.raises(ValueError, match="have several ids of a feature already"):
        with_bags(with_bags(DATASET))
    with pytest.raises(ValueError, match=r"multi_hot 1.5: expected a share"):
        with_bags(DATASET, fixed_share=1.5)
