"""Recorded runs: ranks and steps that are joined, and what the command says of them."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from tests.lab.debug.made_runs import made_run, planted, write_run
from trec_qcomm.lab.debug.command import main
from trec_qcomm.lab.debug.findings import findings
from trec_qcomm.lab.debug.recorded import DebugRun, joined
from trec_qcomm.lab.records import DebugRecord, TrainingRecord, append

GOOD = made_run()
SCALED = planted(
    "t_1", "forward", 40, rms=lambda r: 1000 * r.rms,
    rms_drift=lambda r: math.log2(1000) / (1 + (r.step - 40) / 5),
)  # fmt: skip
NAN = planted("t_2", "backward", 15, num_nan=lambda r: int(r.rank == 1))
HEAVY = planted(
    "t_0", "backward", 30, peak=7.0, snr_db=lambda r: r.snr_db - 9, lost_share=0.8
)  # fmt: skip
LOOSE = planted("t_2", "forward", 0, tolerance=0.1, snr_db=lambda r: r.snr_db - 20, bits=3.0)


def test_ranks_that_show_the_same_are_one_line_since_the_first() -> None:
    later = planted("t_2", "backward", 25, num_nan=lambda r: 1)
    (finding,) = findings(made_run(NAN, later).records)
    assert (finding.step, finding.ranks) == (15, (0, 1))


def test_nothing_stands_out_in_a_good_run() -> None:
    for run in (GOOD, *(made_run(seed=seed) for seed in range(1, 6)), made_run(exact=True)):
        assert findings(run.records) == []


def test_of_several_faults_the_first_comes_first() -> None:
    bad = made_run(SCALED, NAN, HEAVY, seed=2)
    assert [finding.step for finding in findings(bad.records)] == [15, 30, 40]


def test_ranks_are_joined_as_if_they_were_one() -> None:
    """Two ranks' noise is that of their values together."""
    x, noise = ([3.0, 4.0], [1.0]), ([0.1, 0.2], [0.3])
    ranks = [
        DebugRecord(
            configuration="c", rank=rank, step=0, name="t", direction="forward", codec="c",
            num_values=len(x[rank]), num_rows=1, num_nan=rank, bits=8.0 + rank,
            rms=math.sqrt(sum(v * v for v in x[rank]) / len(x[rank])),
            snr_db=10
            * math.log10(sum(v * v for v in x[rank]) / sum(v * v for v in noise[rank])),
        )
        for rank in (0, 1)
    ]  # fmt: skip

    def decibels_of(*records: DebugRecord) -> float | None:
        figures = joined(records)
        assert figures is not None
        return figures.decibels

    assert decibels_of(*ranks) == pytest.approx(10 * math.log10(26 / (0.01 + 0.04 + 0.09)))
    both = joined(ranks)
    assert both is not None
    assert both.bits == pytest.approx((8 * 2 + 9 * 1) / 3)
    assert both.num_nonfinite == 1
    exact = [dataclasses.replace(r, snr_db=None) for r in ranks]
    assert decibels_of(*exact) == math.inf
    assert decibels_of(ranks[0], exact[1]) == pytest.approx(10 * math.log10(26 / 0.05))
    assert joined([dataclasses.replace(ranks[0], num_values=None)]) is None


def test_the_command_ends_with_the_first_and_the_worst(tmp_path: Path, capsys: Any) -> None:
    four = [
        dataclasses.replace(r, is_shadow=True, codec="Rowwise(bits=4)", snr_db=18.5, bits=8.0)
        for r in GOOD.records
        if (r.name, r.direction) == ("t_0", "backward")
    ]
    bad = made_run(LOOSE, NAN, HEAVY)
    folder = write_run(tmp_path / "bad", DebugRun("bad", [*bad.records, *four]))
    assert main([str(folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{folder}: 2 ranks, steps 0 to 95 (20 measured), 4 tables and parameters"
    assert [line.split()[:3] for line in lines[5:11:2]] == [
        ["0", "t_2,", "forward"], ["15", "t_2,", "backward"], ["30", "t_0,", "backward"],
    ]  # fmt: skip
    noisy = next(line for line in lines if line.endswith("Rowwise(bits=4): 18.5 dB, 8.00 bits"))
    assert noisy.split()[4:7] == ["80%", "t_0,", "backward"]  # the noisiest
    assert lines[-4].startswith("First: step 0, t_2, forward: 8.")
    assert lines[-2] == "Worst: step 15, t_2, backward: 1 NaN and 0 inf before the codec."
    assert main([str(folder), "--top", "1"]) == 1
    assert "2 more; --top 3 shows all" in capsys.readouterr().out
    good = write_run(tmp_path / "good", GOOD)
    assert main([str(good)]) == 0
    assert capsys.readouterr().out.endswith("\nNothing stands out.\n")


def test_mistakes_name_the_folder(tmp_path: Path, capsys: Any) -> None:
    other, good = tmp_path / "other", write_run(tmp_path / "good", GOOD)
    append(other / "training.jsonl", TrainingRecord(configuration="x", steps=1))
    cases = [
        ([str(other)], f"{other}: no debug record in it"),
        ([str(tmp_path / "absent")], "absent: no such file or folder"),
        ([str(good), "--top", "0"], "top: 0 is not an integer"),
    ]
    for words, message in cases:
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err
