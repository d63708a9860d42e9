"""A framework that plans, shards and trains by itself takes our sharders, by docs/LIBRARIES.md."""

import json
from pathlib import Path

import pytest

from tests.integration.embedding import framework
from tests.rank_programs import results_of, run_programs

DOCUMENT = Path(__file__).parents[3] / "trec_qcomm" / "docs" / "LIBRARIES.md"


def train(how):
    """Return the losses of this rank and QComm's counts. Args: how: preset or None, and a file."""
    preset, path = how
    if preset is None:
        return framework.train_and_evaluate(path), {}
    (code,) = (c for c in DOCUMENT.read_text().split("```")[1::2] if "tzrec.main" in c)
    names = {}
    for theirs, ours in (
        ("python\n", ""), ('"best"', repr(preset)), ('"pipeline.config"', repr(path)),
        ("import tzrec.main", "from tests.integration.embedding import framework #"),
        ("framework.train_and", "losses = framework.train_and"),
    ):  # fmt: skip
        code = code.replace(theirs, ours)
    exec(code, names)
    return names["losses"], names["qcomm"].stats().to_dict()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    path = tmp_path_factory.mktemp("framework") / "pipeline.config"
    path.write_text(json.dumps({"batch_size": 16, "num_steps": 4}))
    return run_programs(train, 2, {p: (p, str(path)) for p in (None, "fp32", "best")})


@pytest.mark.dist
def test_float32_trains_as_the_framework_alone(ranks):
    alone, ours = (results_of(ranks[preset]) for preset in (None, "fp32"))
    assert [losses for losses, _ in alone] == [losses for losses, _ in ours]
    assert any(stats["embedding_forward"]["wire_nbytes"] for _, stats in ours)


@pytest.mark.dist
def test_rows_gradients_and_dense_are_coded(ranks):
    alone, ours = (results_of(ranks[preset]) for preset in (None, "best"))
    for (plain, _), (losses, _) in zip(alone, ours, strict=True):
        assert losses == pytest.approx(plain, rel=0.05)
    for kind in ("embedding_forward", "embedding_backward", "dense"):
        raw, wire = (sum(s[kind][n] for _, s in ours) for n in ("raw_nbytes", "wire_nbytes"))
        assert wire > 0, kind
        assert kind == "dense" or wire < raw  # its few parameters are smaller than a frame
