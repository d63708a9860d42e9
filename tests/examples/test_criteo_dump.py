"""train.py --dump-rows writes what an unsharded model of equal weights looks up and gets back."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from data.dataset import FEATURES, Batches, prepare
from data.synthetic import generate
from model import ModelConfig, build_model, initial_table
from options import build_parser
from row_dump import DUMPED_SAMPLES, _batch_rows, check_pooling
from torch import Tensor
from torchrec.models.dlrm import DLRMTrain
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from trainer import Trainer

from tests.commands import run
from trec_qcomm import load_config
from trec_qcomm.codecs import ErrorBounded
from trec_qcomm.lab.preview.command import main

ROOT = Path(__file__).parents[2]
SMALL = ["--rows", "6000", "--batch-size", "64", "--dense-arch", "32", "--over-arch", "32"]
CONFIG = ModelConfig.from_options(build_parser().parse_args(["--config", "stock", *SMALL]))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of a training with int4 on the wire that changes no weight."""
    folder = tmp_path_factory.mktemp("dump")
    file = folder / "new" / "rows.pt"
    script = ROOT / "examples" / "criteo" / "train.py"
    options = ["--config", ROOT / "configs" / "int4.yaml", "--out", folder, "--dump-rows", file]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = run(
        [sys.executable, script, *options, *SMALL, "--steps", "3", "--lr", "0", "--dense-lr", "0"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return file


@pytest.fixture
def dumped(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(file, weights_only=True)
    return content


@pytest.fixture(scope="module")
def unsharded() -> tuple[DLRMTrain, Batches]:
    """The model in one process, with its batches on rank 0."""
    dataset = prepare(generate(6000, seed=0), min_count=2, hash_buckets=None)
    model = build_model(CONFIG, dataset.num_embeddings)
    arch = model.model.sparse_arch
    tables = arch.embedding_bag_collection.embedding_bag_configs()
    arch.embedding_bag_collection = EmbeddingBagCollection(tables=tables)
    names = sorted(table.name for table in tables)
    for table in tables:
        weight = arch.embedding_bag_collection.embedding_bags[table.name].weight
        weight.data.copy_(initial_table(*weight.shape, CONFIG, names.index(table.name)))
    return model, Batches(dataset.train, 64, rank=0, world_size=2, drop_last=True)


@pytest.mark.dist
def test_rows_are_those_of_the_ids_and_exact(dumped: dict[str, Any], unsharded: Any) -> None:
    model, batches = unsharded
    bags = model.model.sparse_arch.embedding_bag_collection.embedding_bags
    seen = [batches[index].sparse_features.to_dict() for index in range(len(batches))]
    assert set(dumped["rows"]) == set(bags)
    for table, rows in dumped["rows"].items():
        ids = dumped["ids"][table]
        feature = table.removeprefix("t_")
        assert torch.equal(ids, torch.cat([columns[feature].values() for columns in seen]))
        assert torch.equal(rows, bags[table].weight.detach()[ids])


@pytest.mark.dist
def test_gradients_sum_up_to_those_of_the_tables(dumped: dict[str, Any], unsharded: Any) -> None:
    model, batches = unsharded
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks have: the terms of the sums are then equal bit for bit
    for index in range(len(batches)):
        model(batches[index])[0].backward()
    torch.set_num_threads(threads)
    for table, gradients in dumped["gradients"].items():
        bag = model.model.sparse_arch.embedding_bag_collection.embedding_bags[table]
        ids = dumped["ids"][table]
        summed = torch.zeros_like(bag.weight).index_add_(0, ids, gradients)
        assert summed.abs().max() > 0
        slack = _sum_error(ids, gradients, bag.weight)
        assert ((summed - bag.weight.grad).abs() <= slack).all()


def _sum_error(ids: Tensor, gradients: Tensor, weight: Tensor) -> Tensor:
    """What two float32 sums of the same n terms in two orders may differ by:
    2 (n - 1) 2^-24 sum |g|, so nothing where there is one term."""
    counts = torch.bincount(ids, minlength=len(weight))[:, None]
    sums = torch.zeros_like(weight).index_add_(0, ids, gradients.abs())
    return 2 * (counts - 1).clamp(min=0) * 2**-24 * sums


@pytest.mark.dist
def test_the_file_says_what_it_is_of(dumped: dict[str, Any]) -> None:
    meta = dumped["meta"]
    assert Path(meta.pop("config")).name == "int4.yaml"
    assert meta == {"seed": 0, "steps": 3, "batch": 64, "dim": 16, "num_samples": 2560}
    for name in ("rows", "gradients"):
        for tensor in dumped[name].values():
            assert tensor.dtype == torch.float32
            assert tensor.shape == (2560, 16)  # of the 5142 training rows 40 whole batches, <= 8192
    assert DUMPED_SAMPLES >= 2560


@pytest.mark.dist
def test_the_preview_reads_the_file(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "bounds.yaml"
    options = ["--batch", "200", "--link-gb-s", "1e-6", "--encoders", "bitpack"]
    assert main([str(file), "--codecs", "int8", "--out", str(out), *options]) == 0
    tables = [f"t_{feature}" for feature in FEATURES]
    config = load_config(out)
    config.check_patterns(tables)
    assert all(isinstance(config.rule_for(table).forward, ErrorBounded) for table in tables)


def test_dumping_leaves_no_gradient_in_the_model(unsharded: Any) -> None:
    model, batches = unsharded
    model.zero_grad()
    trainer = Trainer(dmp=model, optimizer=Any, device=torch.device("cpu"))
    rows, gradients, _ = _batch_rows(trainer, batches[0])
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not rows.requires_grad
    assert not gradients.requires_grad


def test_several_ids_a_feature_are_refused() -> None:
    check_pooling([1, 1])
    with pytest.raises(ValueError, match="dump_rows: needs one id a feature; here are up to 3"):
        check_pooling([1, 3])
