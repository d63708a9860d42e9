"""What a rank of the Criteo example says and leaves behind when it fails."""

from argparse import Namespace

import pytest
import ranks
import torch
import torch.distributed as dist


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Options of the only rank of a group, which a launcher has started: this process."""
    where = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in where.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks.logging, "basicConfig", lambda **_: None)  # pytest has its own
    monkeypatch.setattr(ranks.logging, "captureWarnings", lambda _: None)
    return Namespace(ranks_per_node=None, device="cpu", timeout=20, out=tmp_path / "runs")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("lost rank 1"), "rank 0: RuntimeError: lost rank 1"),
        (ValueError("seed: no"), "rank 0: seed: no"),
        (ranks.EveryRankError("rows.tsv: no rows"), "rows.tsv: no rows"),
    ],
)
def test_a_rank_that_fails_says_so_in_a_line(options, tmp_path, capsys, error, said):
    def run(_options):
        dist.barrier()
        raise error

    assert ranks.join(run, options) == ranks.FAILED
    log = tmp_path / "runs" / "errors.log"
    assert capsys.readouterr().err == f"error: {said} (traceback: {log})\n"
    assert "in run\n    raise error" in log.read_text()
    assert not dist.is_initialized()


def test_what_all_ranks_raise_is_said_by_the_first(options, capsys, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    for error, is_said in ((ranks.EveryRankError("no rows"), False), (ValueError("no"), True)):
        ranks._tell(error, options.out)
        assert bool(capsys.readouterr().err) == is_said


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_missing_gpu_is_told_before_the_ranks_meet(options, capsys):
    options.device = "cuda"
    assert ranks.join(lambda _: True, options) == ranks.FAILED
    said = "error: --device cuda: 1 ranks on this machine need a GPU each, there are 0 (traceback: "
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(("device", "method"), [("cuda", "spawn"), ("cpu", "forkserver")])
def test_ranks_on_gpus_are_no_forks(monkeypatch, device, method):
    """The server has imported FBGEMM, which asks for CUDA; a fork of it could not use a GPU."""
    methods = []
    monkeypatch.setattr(ranks, "start_processes", lambda *_, **how: methods.append(how))
    ranks._start_children(lambda _: True, Namespace(device=device, ranks=2))
    assert [how["start_method"] for how in methods] == [method]
