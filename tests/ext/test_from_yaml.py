"""Extensions that a YAML file names train on two real ranks; dct and replicas have tests beside.

tests/ext/dct/test_sharded_topk.py has the presets of DCT, tests/ext/replicas/test_sync.py `sync:`.
"""

import math

import pytest

from tests.integration.small_model import dense_optimizer, shard, train
from trec_qcomm import QComm
from trec_qcomm.config import preset_path
from trec_qcomm.testing import run_ranks

STEPS = 3
FILES = {
    "vector_lz": """
embedding:
  - tables: ["*"]
    forward: {codec: error_bounded, bound: 0.01, encoder: vector_lz}
    backward: {codec: identity}
    schedule: {kind: linear, start: 2, end_step: 2}
""",
    "feedback": """
embedding:
  - tables: ["*"]
    forward: {codec: identity}
    backward: {codec: rowwise, bits: 2}
    unique_bags: true
    error_feedback: {backward_rows: 4}
""",
    "fbgemm": """
embedding:
  - tables: ["*"]
    forward: {codec: fbgemm, precision: fp16}
    backward: {codec: fbgemm, precision: bf16}
""",
}


def everything(folder):
    """Return for each file the losses, raw and sent bytes, bounds, and names of the state."""
    results = {}
    paths = {name: folder / f"{name}.yaml" for name in FILES}
    for name, path in {**paths, "dual_level": preset_path("papers/dual_level")}.items():
        qcomm = QComm.from_yaml(path)
        dmp = shard(qcomm)
        before = qcomm.forward_params()
        losses = train(dmp, dense_optimizer(dmp), range(STEPS))
        stats = qcomm.stats()
        results[name] = {
            "losses": losses,
            "raw": [stats.embedding_forward.raw_nbytes, stats.embedding_backward.raw_nbytes],
            "sent": [
                sum(table.wire_nbytes for table in kind.tables.values())
                for kind in (stats.embedding_forward, stats.embedding_backward)
            ],
            "bounds": [
                [bound for table, bound in bounds.items() if table != "dp"]  # which no codec sends
                for bounds in (before, qcomm.forward_params())
            ],
            "state": sorted(qcomm.state_dict()),
        }
    return results


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("configs")
    for name, text in FILES.items():
        (folder / f"{name}.yaml").write_text(text)
    return run_ranks(everything, 2, folder, timeout_s=240)


@pytest.mark.dist
@pytest.mark.parametrize("name", [*FILES, "dual_level"])
def test_it_trains(ranks, name):
    for results in ranks:
        assert all(math.isfinite(loss) for loss in results[name]["losses"])
        assert len(results[name]["losses"]) == STEPS


@pytest.mark.dist
def test_bounds_follow_schedule_and_classes(ranks):
    for results in ranks:
        before, after = results["vector_lz"]["bounds"]
        assert set(before) == {0.02}
        assert set(after) == {0.01}
        before, after = results["dual_level"]["bounds"]
        assert set(before) == {2 * 0.01}  # tight until a table is measured
        assert set(after) <= {2 * bound for bound in (0.01, 0.03, 0.05)}
        assert "params" in results["dual_level"]["state"]


@pytest.mark.dist
def test_residuals_of_rows_are_state(ranks):
    for results in ranks:
        assert "row_residuals" in results["feedback"]["state"]
        assert "row_residuals" not in results["fbgemm"]["state"]


@pytest.mark.dist
def test_fbgemm_sends_half(ranks):
    for results in ranks:
        assert [2 * n for n in results["fbgemm"]["sent"]] == pytest.approx(
            results["fbgemm"]["raw"], rel=0.05
        )  # segments end at 8 bytes
