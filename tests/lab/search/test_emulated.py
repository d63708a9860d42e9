"""Probes of a real model on two played ranks: records of the numeric debugger."""

import pytest
import torch
import torch.distributed as dist

import trec_qcomm
from tests.lab.ranks import two_towers
from trec_qcomm import Config, Identity, Rowwise
from trec_qcomm.lab.search.candidates import Candidates
from trec_qcomm.lab.search.probes import COARSE, Probes
from trec_qcomm.lab.study.progress import Progress

INT2 = Rowwise(2, "stochastic")


def train(config: Config, seed: int, perturbation: float) -> dict[str, float]:
    emulated = trec_qcomm.emulate(two_towers.make_model(), config, ranks=2)
    optimizers = emulated.run(two_towers.make_optimizer)

    def losses(dmp, optimizer) -> list[float]:
        batches = (two_towers.make_batch(step, dist.get_rank()) for step in range(2))
        return [two_towers.train_step(dmp, optimizer, batch) for batch in batches]

    loss = float(torch.tensor(emulated.run(losses, optimizers)).mean())
    return {"loss": loss}


def test_a_probe_of_two_ranks_has_the_bytes_of_both(tmp_path):
    probes = Probes(
        train=train, candidates=Candidates.from_lists({"forward": [INT2], "backward": [INT2]}),
        seeds=[0], path=tmp_path / "probes.jsonl", metrics=["loss"], unique_bags="auto", every=1,
        setup={}, num_ranks=2,
    )  # fmt: skip
    noise = probes.run(Progress("search", show=False)).noise
    assert {table for table, _, _ in noise} == {"user", "history", "item", "words", "clicks"}
    for (_, direction, codec), each in noise.items():
        assert each.dim == two_towers.DIM
        if codec == Identity():
            assert each.nbytes == pytest.approx(each.rows * two_towers.DIM * 4)
            assert each.relative == 0
        elif codec == INT2:  # codes, and scale and low of each row; segments are padded
            assert each.nbytes >= each.rows * (two_towers.DIM / 4 + 4)
            assert 0.01 < each.relative < 1, direction
    user = noise["user", "forward", Identity()]
    assert user.rows <= 2 * two_towers.BATCH / 2  # 2 x 8 samples, a rank's share of what is sent
    assert ("user", "forward", COARSE) in noise
