"""`trec-qcomm choose` on two ranks, and its table."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trec_qcomm.ext.auto.choice import Choice
from trec_qcomm.ext.auto.search import Tuned
from trec_qcomm.lab.choose import main, table


def test_the_table_has_the_fastest_first_and_marks_the_choice():
    seconds = {Choice(): 0.04, Choice(dense="fast"): 0.03, Choice(backward="int8"): 0.05}
    head, *lines = table(Tuned(Choice(dense="fast"), seconds)).splitlines()
    assert head.split() == ["ms", "a", "step", "of", "exact", "what", "is", "sent"]
    assert [line.split()[:2] for line in lines] == [
        ["30.0", "0.75"],
        ["40.0", "1.00"],
        ["50.0", "1.25"],
    ]
    assert [line.endswith("<- chosen") for line in lines] == [True, False, False]
    assert "exact TorchRec" in lines[1]


@pytest.mark.dist
@pytest.mark.timeout(600)
def test_it_trains_until_there_is_a_choice():
    words = "--batch-size 4 --tables 3 --rows 50 --dim 8 --sharding row_wise"
    command = "-m torch.distributed.run --standalone --nproc-per-node 2 -m trec_qcomm choose"
    said = subprocess.run(
        [sys.executable, *command.split(), *words.split()],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True, check=True, timeout=500,
    ).stdout.decode()  # fmt: skip
    assert said.count("<- chosen") == 1
    assert "best" in said


def test_without_torchrun_it_says_how_to_start_it(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit):
        main([])
    assert "torchrun --nproc-per-node 2 -m trec_qcomm choose" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["--batch-size 0", "--zipf 1", "--sharding none"])
def test_what_makes_no_sense_ends_with_status_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert words.split()[0].strip("-").replace("-", "_") in capsys.readouterr().err.replace(
        "-", "_"
    )
