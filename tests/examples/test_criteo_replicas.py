"""replicas.py: trainings of 2D parallelism on played ranks; its own average against stock's."""

from replicated.client import ReplicatedTrainer

from trec_qcomm.config import config_from_dict, load_preset

SMALL = [
    *("--rows", "2048", "--batch-size", "32", "--embedding-dim", "4", "--steps", "2"),
    *("--dense-arch", "8", "--over-arch", "8"),
]


def test_a_sync_that_is_exact_trains_as_stock_does():
    """A training ends with a check that replicas are equal."""
    train = ReplicatedTrainer.from_words(SMALL)
    configs = load_preset("fp32"), config_from_dict({"sync": {}})
    stock, exact = (train(config, 0, 0.0).metrics for config in configs)
    assert stock == exact
