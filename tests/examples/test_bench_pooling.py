"""The bench of pooling factors counts distinct bags and bytes as they are."""

from pathlib import Path

import pytest

from examples.bench import pooling
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord


def test_mapped_bags_repeat_and_drawn_ones_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pooling.jsonl"
    words = f"--pooling 4 --batch-size 64 --steps 1 --out {file}"
    pooling.main(words.split())
    assert capsys.readouterr().out.splitlines()[-1] == f"4 cases; {file}"
    made = {}
    for record in records.read(file):
        assert isinstance(record, BenchRecord)
        made[record.configuration] = record.figures
    assert list(made) == [f"{k}, {ids} ids" for k in pooling.KINDS for ids in ("whole", "packed")]
    for name, figures in made.items():
        merges = name.startswith("mapped")
        assert (figures["distinct_bags"] < 0.9) == merges
        assert (figures["nbytes_over_all"] < 0.9) == merges
        assert min(figures.values()) > 0
