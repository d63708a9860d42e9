"""What a rank of the Criteo example leaves behind when a collective fails."""

import json
import tempfile
from argparse import Namespace

import pytest
import ranks
import torch.distributed as dist


def test_a_rank_that_fails_writes_its_last_collectives(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    where = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in (where | {"MASTER_PORT": str(ranks._free_port())}).items():
        monkeypatch.setenv(name, value)

    def run(_options):
        dist.barrier()
        raise RuntimeError("rank 0: lost rank 1")

    with pytest.raises(RuntimeError, match="lost rank 1"):
        ranks.join(run, Namespace(ranks_per_node=None, device="cpu", timeout=20))
    (file,) = tmp_path.glob("collectives_*_rank0.json")
    names = [entry["profiling_name"] for entry in json.loads(file.read_text())["entries"]]
    assert "gloo:barrier" in names
