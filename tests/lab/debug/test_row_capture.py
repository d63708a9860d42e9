"""capture_rows -> save -> preview -> config -> QComm; the rows kept are the rows that are sent."""

import pytest
import torch
import torch.distributed as dist

from tests.integration.small_model import (
    NUM_IDS,
    TABLES,
    batch,
    dense_optimizer,
    qcomm_of,
    shard,
    train,
)
from trec_qcomm import QComm, Rowwise
from trec_qcomm.lab.preview import measure
from trec_qcomm.lab.preview.command import main
from trec_qcomm.lab.preview.previews import load_captured
from trec_qcomm.testing import run_ranks

STEPS, MAX_NBYTES = 2, 600
SENT = {name: dim for name, dim, _, _ in TABLES if name != "dp"}


def captured(folder):
    """Train beside a run that captures nothing; choose codecs, and train with what is written."""
    file, out = folder / "new" / "rows.pt", folder / "mine.yaml"
    plain = shard(qcomm_of(Rowwise(4)))
    losses = train(plain, dense_optimizer(plain), range(5))
    qcomm = qcomm_of(Rowwise(4), source="four.yaml")
    with pytest.raises(ValueError, match="capture_rows: no table is sharded yet"):
        qcomm.capture_rows(1)
    dmp = shard(qcomm)
    optimizer = dense_optimizer(dmp)
    observed = train(dmp, optimizer, range(1))
    refused(qcomm)
    expected = rows_of_first_table(dmp)  # in the first captured step
    capture = qcomm.capture_rows(STEPS, gradients=True)
    with torch.no_grad():
        dmp(batch(7, 3))  # an evaluation is no step
    with pytest.raises(ValueError, match="rows are captured already"):
        qcomm.capture_rows(1)
    observed += train(dmp, optimizer, range(1, 5))  # more steps than are captured
    capture.save(file)
    bounded = qcomm.capture_rows(1, max_nbytes=MAX_NBYTES)  # the first has ended
    train(dmp, optimizer, range(5, 6))
    bounded.save(folder / "bounded.pt")
    previewed = preview_while_training(qcomm, dmp, optimizer)
    if dist.get_rank() == 0:
        words = [str(file), "--codecs", "int8", "--out", str(out), "--encoders", "bitpack"]
        main([*words, "--link-gb-s", "1e-6"])
    dist.barrier()
    tuned = QComm.from_yaml(out)
    train(shard(tuned), optimizer, range(2))
    return {
        "same": losses == observed,
        "expected": expected,
        "rows": capture.rows.get("tw_first"),
        "bounded": sum(b.nbytes for blocks in bounded.rows.values() for b in blocks),
        "sent": tuned.stats().embedding_forward.wire_nbytes,
        "codecs": {t: tuned.config.rule_for(t).forward.name for t, *_ in TABLES},
    } | previewed


def preview_while_training(qcomm, dmp, optimizer):
    """Print a preview before, while and after its steps, which are 6 and 7. Nothing is timed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "coding_s", lambda codec, blocks: (1.0, 1.0))
        preview = qcomm.preview(STEPS)
        texts = [str(preview)]
        for step in range(6, 9):  # one more than are shown
            train(dmp, optimizer, range(step, step + 1))
            texts.append(str(preview))
        tables = preview.preview().tables
    rows = {direction: {t.table: t.num_rows for t in every} for direction, every in tables.items()}
    return {"preview": texts, "preview_rows": rows}


def rows_of_first_table(dmp):
    """Return what rank 0's samples of step 1 look up in the table that lies on rank 0."""
    name = "module.ebc.embedding_bags.tw_first.weight"
    table = dmp.state_dict()[name.removeprefix("module.")].local_shards()
    if dist.get_rank() or not table:
        return None
    bags = batch(1, 6)["f0"]
    return torch.nn.functional.embedding_bag(
        bags.values(), table[0].tensor, bags.offsets()[:-1], mode="sum"
    )


def refused(qcomm):
    for steps in (0, 1.5, True):
        with pytest.raises(ValueError, match=r"steps: .* is not an integer >= 1"):
            qcomm.capture_rows(steps)
    with pytest.raises(ValueError, match=r"max_nbytes: 20: give \d+ or more"):
        qcomm.capture_rows(1, max_nbytes=20)
    qcomm.capture_rows(1).stop()
    with pytest.raises(ValueError, match="nothing was captured"):
        qcomm.capture_rows(1).save("never.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("capture")


@pytest.fixture(scope="module")
def ranks(folder):
    return run_ranks(captured, 2, folder, timeout_s=240)  # rank 1 waits while rank 0 chooses


def num_samples_of(steps):
    """Return the samples of both ranks in these steps: 6 and 2 (small_model.batch_size)."""
    return sum(6 + (0 if step % 4 == 3 else 2) for step in steps)


@pytest.mark.dist
def test_every_row_of_the_steps_is_kept_and_nothing_else(ranks, folder):
    content = torch.load(folder / "new" / "rows.pt", weights_only=True)
    assert content["meta"] == {
        "config": "four.yaml", "steps": STEPS, "num_left_out": 0, "world_size": 2,
    }  # fmt: skip
    assert content["without_rows"] == ["dp"]
    for table, counts in content["tables"].items():
        blocks = content["rows"][table]
        assert counts["num_sent"] == sum(map(len, blocks))
        assert counts["num_blocks"] >= len(blocks)  # one of no rows is counted, too
        assert (counts["num_rows"], counts["is_partial"]) == (NUM_IDS, False)
    assert set(content["tables"]) == set(SENT)
    # What both ranks' samples of a step look up together; of one feature, whole on a rank.
    first, blocks = content["tables"]["tw_first"], content["rows"]["tw_first"]
    steps = [torch.cat(blocks[n : n + 2]) for n in range(0, len(blocks), 2)]
    assert first["num_joint"] == sum(len(torch.unique(rows, dim=0)) for rows in steps)
    assert first["num_joint"] < first["num_sent"]
    assert first["num_joint_sets"] == len(steps) == STEPS
    num_features = {name: len(features) for name, _, features, _ in TABLES}
    for kind in ("rows", "gradients"):
        assert set(content[kind]) == set(SENT)
        for table, blocks in content[kind].items():
            width = SENT[table] // (2 if table.startswith("cw") else 1)
            assert {block.shape[1] for block in blocks} == {width}
            shards = SENT[table] // width * num_features[table]
            assert sum(map(len, blocks)) == shards * num_samples_of(range(1, 1 + STEPS))


@pytest.mark.dist
def test_rows_are_exact(ranks):
    """The codec has 4 bits; the first block is what rank 0 sends itself in the first step."""
    first, expected = ranks[0]["rows"][0], ranks[0]["expected"]
    assert bool(expected.any())
    torch.testing.assert_close(first, expected, rtol=2**-22, atol=2**-22)  # sums of three values
    assert ranks[1]["rows"] is None  # nor does rank 1 send this table


@pytest.mark.dist
def test_capturing_changes_nothing(ranks):
    assert [rank["same"] for rank in ranks] == [True, True]


@pytest.mark.dist
def test_a_preview_is_about_the_steps_that_were_asked_for(ranks):
    holds = [{"cw", "cw_shared", "tw_first"}, {"cw", "cw_shared", "tw_last"}]
    for rank, tables in enumerate(holds):
        before, first, second, third = ranks[rank]["preview"]
        assert before == "Preview: 0 of 2 steps so far; train, and print it again"
        assert first.startswith("Preview of 1 of 2 steps, rows of this rank alone\n\nRows, ")
        assert second.startswith("Preview of 2 of 2 steps, rows of this rank alone\n\nRows, ")
        assert third == second
        rows = ranks[rank]["preview_rows"]
        assert set(rows["forward"]) == tables
        assert set(rows["backward"]) == set(SENT)
        features = {name: len(features) for name, _, features, _ in TABLES}
        for table in tables:
            sent = num_samples_of(range(6, 8)) * features[table] / STEPS
            assert rows["forward"][table] == sent, table


@pytest.mark.dist
def test_memory_is_bounded_and_told(ranks, folder):
    assert all(0 < rank["bounded"] <= MAX_NBYTES // 2 for rank in ranks)
    content = torch.load(folder / "bounded.pt", weights_only=True)
    assert set(content["rows"]) == set(SENT)
    num_kept = sum(len(block) for blocks in content["rows"].values() for block in blocks)
    num_features = {name: len(features) for name, _, features, _ in TABLES}
    shards = sum(num_features[t] * (2 if t.startswith("cw") else 1) for t in SENT)
    assert num_kept + content["meta"]["num_left_out"] == shards * num_samples_of([5])
    assert content["meta"]["num_left_out"] > 0


@pytest.mark.dist
def test_the_preview_makes_a_config_that_trains(ranks, folder):
    captured = load_captured(folder / "new" / "rows.pt", batch=9)
    assert set(captured.blocks["forward"]) == set(SENT)
    for rank in ranks:
        assert rank["codecs"] == dict.fromkeys(SENT, "error_bounded") | {"dp": "identity"}
        assert rank["sent"] > 0
