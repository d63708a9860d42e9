"""Deltas of trained tables: numpy reads what any codec wrote, torn files are seen, runs resume."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import nn
from torchrec.distributed.sharding_plan import column_wise, data_parallel, row_wise, table_wise
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.integration import small_model
from tests.integration.sharded_models.training import qcomm_of
from trec_qcomm import (
    Cast,
    CorruptFrameError,
    DeltaExport,
    ErrorBounded,
    Float6,
    Float8,
    Identity,
    Rowwise,
    Segments,
    TopK,
    read_delta,
)
from trec_qcomm.core.codec import encode_alone
from trec_qcomm.ops.batch.packed_ids import Bags
from trec_qcomm.ops.numpy_decoders import decode_ids, decode_rows
from trec_qcomm.testing import awkward_rows, round_trip, run_ranks
from trec_qcomm.wire import id_messages

BOUND = 1e-3
CODECS = {"exact": Identity(), "bounded": ErrorBounded(BOUND, mode="abs")}
PLAN = {
    "tw_first": row_wise(),
    "tw_last": table_wise(rank=1),
    "cw": column_wise(ranks=[1, 0]),
    "cw_shared": table_wise(rank=0),
    "dp": data_parallel(),
}


def program(folder: Path) -> dict[str, object]:
    """Train with an export each two steps. Return this rank's rows, and what the model says."""
    model = small_model.shard(qcomm_of(Identity()), optimizer="adagrad", plan=PLAN)
    exports = {name: DeltaExport(model, codec) for name, codec in CODECS.items()}
    optimizer = small_model.dense_optimizer(model)
    for first in (0, 2, 4):
        for name, export in exports.items():
            export.write(folder / name)
        small_model.train(model, optimizer, range(first, first + 2))
    for name, export in exports.items():
        export.write(folder / name)
    said = predictions(model.module, small_model.batch(9, 6))
    state = model.state_dict()
    shards = {
        name.split(".")[-2]: [(*s.metadata.shard_offsets, s.tensor) for s in value.local_shards()]
        for name, value in state.items()
        if hasattr(value, "local_shards")
    }
    rest = {name: value for name, value in state.items() if not hasattr(value, "local_shards")}
    return {"said": said, "rest": rest, "tables": shards}


@torch.no_grad()
def predictions(model: nn.Module, features: KeyedJaggedTensor) -> torch.Tensor:
    """Return what the model says. A sharded collection has its keys in another order."""
    rows = model.ebc(features)
    return model.over(torch.cat([rows[key] for key in sorted(rows.keys())], 1))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deltas")
    return folder, run_ranks(program, 2, folder)


def served(folder: Path) -> dict[str, np.ndarray]:
    """Return whole tables, as a server has them that read all files in their order."""
    tables = {
        name: np.full((small_model.NUM_IDS, dim), np.nan, np.float32)
        for name, dim, *_ in small_model.TABLES
    }
    for path in sorted(folder.glob("*.rows")):
        for changed in read_delta(path):
            changed.write_to(tables[changed.table])
    return tables


@pytest.mark.dist
@pytest.mark.parametrize("name", CODECS)
def test_a_server_has_the_rows_that_ranks_have(trained, name):
    folder, ranks = trained
    tables = served(folder / name)
    assert np.isnan(tables.pop("dp")).all()  # DDP has it on every rank
    most = 0 if name == "exact" else BOUND
    for rank in ranks:
        for table, parts in rank["tables"].items():
            for row, column, values in parts:
                there = tables[table][row:, column:][: values.shape[0], : values.shape[1]]
                assert np.abs(there - values.numpy()).max() <= most, table


@pytest.mark.dist
@pytest.mark.parametrize("name", CODECS)
def test_served_predictions_are_those_of_the_training(trained, name):
    folder, ranks = trained
    model = small_model.Model()
    model.load_state_dict(ranks[0]["rest"], strict=False)
    for table, values in served(folder / name).items():
        if table != "dp":
            model.ebc.embedding_bags[table].weight.data.copy_(torch.from_numpy(values))
    most_ids, slack = 3, 1e-6
    most = (
        float(model.over.weight.detach().abs().sum()) * most_ids * BOUND * (name != "exact") + slack
    )
    for rank, features in zip(ranks, batches(), strict=True):
        assert (predictions(model, features) - rank["said"]).abs().max() <= most


def batches() -> Iterator[KeyedJaggedTensor]:
    """Yield the batches that the ranks evaluated."""
    with pytest.MonkeyPatch.context() as patch:
        for rank in (0, 1):
            patch.setattr(dist, "get_rank", lambda rank=rank: rank)
            yield small_model.batch(9, 6)


@pytest.mark.dist
def test_later_files_have_rows_that_batches_looked_up(trained):
    folder, _ = trained
    first, second, *_ = sorted((folder / "exact").glob("*-00000-of-00002.rows"))
    assert read_delta(first).is_whole
    delta = read_delta(second.read_bytes())
    assert (delta.number, delta.is_whole, delta.rank, delta.num_ranks) == (1, False, 0, 2)
    assert sorted(delta.tables) == ["cw", "cw_shared", "tw_first"]
    assert 0 < sum(len(c.rows) for c in delta) < sum(len(c.rows) for c in read_delta(first))
    assert second.stat().st_size < first.stat().st_size


@pytest.mark.parametrize("dim", [1, 4, 7, 64])
@pytest.mark.parametrize(
    "codec",
    [
        Identity(), Cast("fp16"), Cast("bf16"), Rowwise(8), Rowwise(4), Rowwise(2), Float6("e4m1"),
        Float6("e3m2"), Float8("e4m3"), Float8("e5m2"), ErrorBounded(0.01), ErrorBounded(0.4),
        ErrorBounded(1e-5, mode="abs"),
        ErrorBounded(1e-44, mode="abs"),
    ],
    ids=repr,
)  # fmt: skip
def test_numpy_decodes_as_codecs_do(codec, dim):
    normal = torch.randn(2100, dim, generator=torch.Generator().manual_seed(dim)).clamp(-2, 2)
    for rows in (normal, awkward_rows(dim), normal[:5] * 1e38, normal[:9] * 1e-40, normal[:1] * 0):
        segments = Segments.packed([len(rows)], dim)
        encoded = encode_alone(codec, rows, segments)
        data = encoded.payload.numpy()[: int(encoded.nbytes[0])]
        ours = torch.from_numpy(decode_rows(codec.wire_id, data, *rows.shape))
        theirs = round_trip(codec, rows, segments)
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(
            ours.nan_to_num().view(torch.int32), theirs.nan_to_num().view(torch.int32)
        )


@pytest.mark.parametrize("ids", [[0], [5, 6, 7], [0, 2**31, 2**40], list(range(3, 900, 7))])
def test_numpy_reads_ids(ids):
    ids = torch.tensor(ids, dtype=torch.int64)
    bags = Bags(ids, torch.ones(len(ids), dtype=torch.int64), torch.tensor([len(ids)]))
    data = id_messages.pack(bags, [1], even_bags=len(ids)).buffer.numpy()
    assert decode_ids(data[32:], len(ids)).tolist() == ids.tolist()


def model_of(
    *num_rows: int, optimizer: EmbOptimType = EmbOptimType.EXACT_ROWWISE_ADAGRAD
) -> nn.Module:
    """Return a module with a kernel of some tables, "kernel.0" and so on; by default one of 500."""
    torch.manual_seed(0)
    model = nn.Module()
    model.kernel = SplitTableBatchedEmbeddingBagsCodegen(
        [(n, 8, EmbeddingLocation.HOST, ComputeDevice.CPU) for n in num_rows or (500,)],
        optimizer=optimizer,
    )
    for weights in model.kernel.split_embedding_weights():
        weights.normal_()
    return model


def look_up(model: nn.Module, *ids: int) -> None:
    model.kernel(torch.tensor(ids), torch.tensor([0, len(ids)])).sum().backward()


def rows_of(source: Path | bytes) -> list[int]:
    return [int(row) for changed in read_delta(source) for row in changed.rows]


def test_changed_bytes_and_torn_files_are_seen(tmp_path):
    model = model_of(30)
    good = DeltaExport(model, Rowwise(4)).write(tmp_path).read_bytes()
    assert rows_of(good) == list(range(30))
    nothing = DeltaExport(model_of(30))
    nothing.write(tmp_path / "nothing")
    empty = nothing.write(tmp_path / "nothing").read_bytes()
    assert rows_of(empty) == []
    generator = np.random.default_rng(0)
    torn = [good[:size] for size in range(0, len(good), 8)]
    changed = [bytearray(good) for _ in range(300)]
    for data in changed:
        data[generator.integers(len(data))] ^= 1 << int(generator.integers(8))
    flipped = [bytearray(empty) for _ in range(8 * len(empty))]
    for bit, data in enumerate(flipped):
        data[bit // 8] ^= 1 << bit % 8
        if data[6:8] != bytes(2):  # reserved
            flipped[bit] = data[:-1]
    for data in (*torn, *changed, *flipped, good + bytes(8)):
        with pytest.raises(CorruptFrameError):
            read_delta(bytes(data))
    (tmp_path / "empty").touch()
    with pytest.raises(CorruptFrameError, match="empty"):
        read_delta(tmp_path / "empty")


def test_parts_of_another_file_are_seen(tmp_path):
    """Each part is whole, and has the right size; only the checksums of the file tell."""
    model = model_of()
    export = DeltaExport(model)
    files = []
    for _ in range(3):
        look_up(model, 1, 2)
        files.append(export.write(tmp_path).read_bytes())
    begin = files[1].index(b"TQID")
    with pytest.raises(CorruptFrameError, match="another file"):
        read_delta(files[1][:begin] + files[2][files[2].index(b"TQID") :])


def test_rows_of_a_failed_export_are_in_the_next(tmp_path, monkeypatch):
    model = model_of()
    export = DeltaExport(model)
    export.write(tmp_path)
    look_up(model, 3)

    def fail(_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="full"):
            export.write(tmp_path)
    with pytest.raises(OSError, match="full"):
        export.send(fail)
    assert len(list(tmp_path.iterdir())) == 1
    assert export.number == 1
    look_up(model, 4)
    sent: list[bytes] = []
    export.send(sent.append)
    assert rows_of(b"".join(sent)) == [3, 4]


def test_a_lookup_before_an_export_counts_after_it_if_it_is_trained_then(tmp_path):
    model = model_of()
    export = DeltaExport(model)
    out = model.kernel(torch.tensor([9]), torch.tensor([0, 1]))
    assert rows_of(export.write(tmp_path)) == list(range(500))
    out.sum().backward()
    assert rows_of(export.write(tmp_path)) == [9]


def test_a_server_follows_tables_of_which_some_do_not_change(tmp_path):
    """With batches of any tables, backwards after an export, and state that is saved and loaded."""
    sizes, generator = (40, 7, 300, 1, 90), np.random.default_rng(0)
    model = model_of(*sizes)
    export, tables = DeltaExport(model), [np.zeros((n, 8), np.float32) for n in sizes]
    pending = []
    for step in range(60):
        for changed in read_delta(export.write(tmp_path)):
            changed.write_to(tables[int(changed.table.removeprefix("kernel."))])
        for ours, theirs in zip(tables, model.kernel.split_embedding_weights(), strict=True):
            assert np.array_equal(ours, theirs.detach().numpy())
        for out in pending:
            out.sum().backward()
        counts = [int(generator.integers(3)) * int(generator.integers(2)) for _ in sizes]
        ids = [
            i
            for n, count in zip(sizes, counts, strict=True)
            for i in generator.integers(n, size=count)
        ]
        out = model.kernel(
            torch.tensor(ids, dtype=torch.int64), torch.tensor([0, *np.cumsum(counts)])
        )
        pending = [out] if step % 3 else []
        if not pending:
            out.sum().backward()
        export.load_state_dict(export.state_dict())


def test_a_folder_of_another_run_is_refused(tmp_path):
    first, again = DeltaExport(model_of()), DeltaExport(model_of())
    path = first.write(tmp_path)
    state = first.state_dict()
    first.write(tmp_path)
    with pytest.raises(FileExistsError, match="of another run"):
        again.write(tmp_path)
    again.load_state_dict({key.replace("of1", "of2"): value for key, value in state.items()})
    with pytest.raises(FileExistsError, match=r"00000001-00000-of-00001\.rows: of another run"):
        again.write(tmp_path)
    again.load_state_dict(state)
    assert again.write(tmp_path).name.replace("00000001", "00000000") == path.name


def test_a_resumed_run_writes_the_same(tmp_path):
    model = model_of()
    export = DeltaExport(model, Rowwise(8, "stochastic"))
    export.write(tmp_path / "a")
    look_up(model, 1, 5)
    state, weights = export.state_dict(), model.state_dict()
    resumed = model_of()
    resumed.load_state_dict(weights)
    other = DeltaExport(resumed, Rowwise(8, "stochastic"))
    other.load_state_dict(state)
    paths = []
    for name, one, now in (("a", export, model), ("b", other, resumed)):
        look_up(now, 7)
        paths.append(one.write(tmp_path / name))
    assert paths[0].name == paths[1].name
    assert rows_of(paths[1]) == [1, 5, 7]
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("state", ["nothing", "other ranks", "other tables"])
def test_state_that_does_not_fit_makes_the_next_export_whole(tmp_path, state, caplog):
    export = DeltaExport(model_of())
    export.write(tmp_path)
    kept = export.state_dict()
    if state == "other ranks":
        kept = {key.replace("of1", "of2"): value for key, value in kept.items()}
    other = DeltaExport(model_of(*(499, 1) if state == "other tables" else ()))
    other.load_state_dict({} if state == "nothing" else kept)
    assert other.number == (0 if state == "nothing" else 1)
    assert read_delta(other.write(tmp_path / "other")).is_whole
    assert ("all rows" in caplog.text) == (state != "nothing")


KILLED = """
import os, signal, sys
from tests.ext.test_delta import DeltaExport, look_up, model_of
model = model_of()
export = DeltaExport(model)
export.write(sys.argv[1])
look_up(model, 3)
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
export.write(sys.argv[1])
"""
READ = """
import sys
sys.modules |= dict.fromkeys(["torch", "torchrec", "fbgemm_gpu", "numba", "triton", "yaml"])
import trec_qcomm
for changed in trec_qcomm.read_delta(sys.argv[1]):
    print(changed.table, len(changed.rows), float(changed.values.sum()))
"""


def test_a_kill_in_the_middle_of_a_write_leaves_no_file(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert done.returncode < 0
    (first,) = tmp_path.glob("*.rows")
    assert read_delta(first).is_whole
    (unfinished,) = tmp_path.glob("*.unfinished")
    assert unfinished.stat().st_size > 0


def test_a_reader_needs_numpy_alone(tmp_path):
    model = model_of()
    path = DeltaExport(model).write(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", READ, path], check=True, capture_output=True, text=True
    )
    table, num_rows, total = done.stdout.split()
    assert (table, num_rows) == ("kernel.0", "500")
    weights = model.kernel.split_embedding_weights()[0]
    assert float(total) == pytest.approx(float(weights.sum()), rel=1e-4)


@pytest.mark.parametrize(
    ("codec", "what"),
    [
        (ErrorBounded(0.1, encoder="rans"), "bitpack"),
        (TopK(density=0.5), "allowed: identity, cast"),
    ],
)
def test_codecs_without_a_reader_are_refused(codec, what):
    with pytest.raises(ValueError, match=what):
        DeltaExport(model_of(), codec)


def test_models_whose_rows_change_unseen_are_refused():
    with pytest.raises(ValueError, match="EMAINPLACE_ROWWISE_ADAGRAD changes rows that no batch"):
        DeltaExport(model_of(optimizer=EmbOptimType.EMAINPLACE_ROWWISE_ADAGRAD))
    model = model_of()
    model.set_all_reduce_hook = None  # as a DMPCollection has
    with pytest.raises(ValueError, match="delta: a DMPCollection averages rows"):
        DeltaExport(model)


def test_tables_of_one_name_are_refused_on_whatever_rank_they_are():
    model = model_of()
    for name in ("user", "user2"):
        setattr(model, name, nn.Module())
        getattr(model, name).module_sharding_plan = {"t": None}
    with pytest.raises(ValueError, match="two tables are called 't': in user and user2"):
        DeltaExport(model)


def test_models_without_fused_tables_are_refused():
    with pytest.raises(ValueError, match="delta: the model has no table with a fused optimizer"):
        DeltaExport(nn.Linear(2, 2))
