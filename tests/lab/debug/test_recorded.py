"""Planted faults in recorded runs: each is named by place and first step, and nothing else is."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from tests.lab.debug.made_runs import (
    BACKWARD,
    PARAMETER,
    TABLES,
    made_run,
    planted,
    write_run,
)
from trec_qcomm.lab.debug.command import main
from trec_qcomm.lab.debug.recorded.compare import RECEIVED, compare
from trec_qcomm.lab.debug.recorded.run import DebugRun, joined_figures, read_run
from trec_qcomm.lab.debug.recorded.text import wrong_of
from trec_qcomm.lab.records import DebugRecord, TrainingRecord, append

GOOD = made_run()
SCALED = planted(
    "t_1", "forward", 40, rms=lambda r: 1000 * r.rms,
    rms_drift=lambda r: math.log2(1000) / (1 + (r.step - 40) / 5),
    range_quantiles=lambda r: tuple(1000 * q for q in r.range_quantiles),
)  # fmt: skip
NAN = planted("t_2", "backward", 15, num_nan=lambda r: int(r.rank == 1))
HEAVY = planted(
    "t_0", "backward", 30, peak=7.0, snr_db=lambda r: r.snr_db - 9, lost_share=0.8
)  # fmt: skip
LOOSE = planted("t_2", "forward", 0, tolerance=0.1, snr_db=lambda r: r.snr_db - 20, bits=3.0)
GROWING = planted(
    PARAMETER, "residual", 20, residual_over_gradient=lambda r: 0.3 * 1.2 ** (r.step - 20)
)  # fmt: skip
DOUBLED = planted(
    "t_0", "forward", 55,
    received_squares=lambda r: tuple(
        q * (4 if r.rank == 1 and peer == 0 else 1)
        for peer, q in zip(r.peers, r.received_squares, strict=True)
    ),
)  # fmt: skip
FAULTS = [
    (SCALED, 40, "t_1", "forward", "rms"),
    (NAN, 15, "t_2", "backward", "num_nan"),
    (HEAVY, 30, "t_0", "backward", "peak"),
    (LOOSE, 0, "t_2", "forward", "tolerance"),
    (GROWING, 25, PARAMETER, "residual", "residual_over_gradient"),
    (DOUBLED, 55, "t_0", "forward", RECEIVED),
]


@pytest.mark.parametrize(("fault", "step", "name", "direction", "field"), FAULTS)
def test_a_planted_fault_is_named_by_place_and_first_step(
    fault: Any, step: int, name: str, direction: str, field: str
) -> None:
    bad = made_run(fault, seed=2)
    first, *others = compare(GOOD, bad).first
    assert others == []
    # The residual grows by 20 % a step, so that it is told a step later than it began.
    assert first.step == step or (direction == "residual" and first.step <= step + 5)
    assert (first.place.name, first.place.direction) == (name, direction)
    assert first.field == field
    assert first.size > first.limit
    assert first.advice
    # A residual stands out from four times a gradient on.
    (wrong,) = wrong_of(made_run(fault))
    assert wrong.first.step == step or (direction == "residual" and wrong.first.step <= step + 10)
    assert (wrong.first.name, wrong.first.direction) == (name, direction)
    assert wrong.ranks == ((1,) if fault in (NAN, DOUBLED) else (0, 1))


def test_ranks_that_show_the_same_are_one_line_since_the_first() -> None:
    later = planted("t_2", "backward", 25, num_nan=lambda r: 1)
    (wrong,) = wrong_of(made_run(NAN, later))
    assert (wrong.first.step, wrong.first.rank, wrong.ranks) == (15, 1, (0, 1))


def test_nothing_stands_out_in_a_good_run() -> None:
    for run in (GOOD, made_run(seed=1), made_run(exact=True)):
        assert wrong_of(run) == []


def test_of_several_faults_the_first_comes_first() -> None:
    bad = made_run(SCALED, NAN, DOUBLED, seed=2)
    assert [d.step for d in compare(GOOD, bad).first] == [15, 40, 55]


def test_runs_that_differ_by_little_do_not_differ() -> None:
    for seed in range(2, 12):
        assert compare(GOOD, made_run(seed=seed)).first == []


def test_what_a_codec_is_meant_to_lose_is_no_difference_to_an_exact_run() -> None:
    exact = made_run(exact=True)
    assert compare(exact, made_run(seed=2)).first == []
    differs = compare(exact, made_run(SCALED, NAN, LOOSE, seed=2)).first
    assert [(d.step, d.place.name) for d in differs] == [(15, "t_2"), (40, "t_1")]


def test_ranks_are_joined_as_if_they_were_one() -> None:
    """Two ranks' root mean square and noise are those of their values together."""
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
    figures = joined_figures(ranks)
    assert figures["rms"] == pytest.approx(math.sqrt((9 + 16 + 1) / 3))
    assert figures["snr_db"] == pytest.approx(10 * math.log10(26 / (0.01 + 0.04 + 0.09)))
    assert figures["bits"] == pytest.approx((8 * 2 + 9 * 1) / 3)
    assert figures["num_nan"] == 1
    exact = [dataclasses.replace(r, snr_db=None) for r in ranks]
    assert joined_figures(exact)["snr_db"] == math.inf
    assert joined_figures([ranks[0], exact[1]])["snr_db"] == pytest.approx(
        10 * math.log10(26 / 0.05)
    )
    assert joined_figures([dataclasses.replace(ranks[0], num_values=None)]) == {}


def test_a_wrong_scale_behind_the_decoder_names_both_ends() -> None:
    (first,) = compare(GOOD, made_run(DOUBLED, seed=2)).first
    assert first.what == "rank 1 uses 2 times what rank 0 sent, in norm"
    assert compare(made_run(DOUBLED), made_run(DOUBLED, seed=2)).first == []


def test_a_rank_that_ends_with_another_mean_is_named() -> None:
    off = planted(
        PARAMETER, "dense", 10, received_squares=lambda r: (0.25 if r.rank == 0 else 0.26,)
    )
    differs = compare(GOOD, made_run(off, seed=2)).first
    assert [(d.step, d.place.direction, d.field) for d in differs] == [(10, "dense", RECEIVED)]


def test_a_rank_without_records_is_told(tmp_path: Path, capsys: Any) -> None:
    alone = DebugRun("alone", [r for r in GOOD.records if r.rank == 0])
    assert alone.ranks_without_records == [1]
    a = write_run(tmp_path / "a", alone)
    assert main(["compare", str(a), str(a)]) == 0
    assert "no records of ranks 1: what they received is not checked." in capsys.readouterr().out


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    runs = {"good": GOOD, "bad": made_run(SCALED, NAN, seed=2)}
    return {name: write_run(tmp_path / name, run) for name, run in runs.items()}


def test_the_command_ends_with_the_first_difference(folders: dict[str, Path], capsys: Any) -> None:
    good, bad = (str(folders[name]) for name in ("good", "bad"))
    assert main(["compare", good, bad]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"A     {good}: 2 ranks, steps 0 to 95 (20 measured), 4 tables")
    assert lines[-2] == "First difference: step 15, t_2, backward: NaN 0 in A, 1 in B."
    assert lines[-1].startswith("What to do: ")
    assert "20 steps in common" in lines[3]
    rows = [line.split() for line in lines[6:10:2]]
    assert [row[:3] for row in rows] == [["15", "t_2,", "backward"], ["40", "t_1,", "forward"]]
    assert main(["compare", good, bad, "--top", "1"]) == 1
    printed = capsys.readouterr().out
    assert "1 more places differ later or less; --top 2" in printed
    assert main(["compare", good, good]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "No difference beyond the limits."


def test_show_ends_with_the_first_and_the_worst(tmp_path: Path, capsys: Any) -> None:
    four = [
        dataclasses.replace(r, is_shadow=True, codec="Rowwise(bits=4)", snr_db=18.5, bits=8.0)
        for r in GOOD.records
        if (r.name, r.direction) == ("t_0", "backward")
    ]
    bad = made_run(LOOSE, NAN, HEAVY)
    folder = write_run(tmp_path / "bad", DebugRun("bad", [*bad.records, *four]))
    assert main(["show", str(folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{folder}: 2 ranks, steps 0 to 95 (20 measured), 4 tables and parameters"
    assert [line.split()[:3] for line in lines[5:11:2]] == [
        ["0", "t_2,", "forward"], ["15", "t_2,", "backward"], ["30", "t_0,", "backward"],
    ]  # fmt: skip
    noisy = next(line for line in lines if line.endswith("Rowwise(bits=4): 18.5 dB, 8.00 bits"))
    assert noisy.split()[4:7] == ["80%", "t_0,", "backward"]  # the noisiest
    assert lines[-4].startswith("First: step 0, t_2, forward: 8.")
    assert lines[-2] == "Worst: step 15, t_2, backward: 1 NaN and 0 inf before the codec."
    assert main(["show", str(folder), "--top", "1"]) == 1
    assert "2 more; --top 3 shows all" in capsys.readouterr().out
    good = write_run(tmp_path / "good", GOOD)
    assert main(["show", str(good)]) == 0
    assert capsys.readouterr().out.endswith("\nNothing stands out.\n")


def test_lines_that_were_recorded_again_count_once(folders: dict[str, Path]) -> None:
    again = [r for r in made_run(SCALED).records if r.step >= 40]
    for record in again:
        append(folders["good"] / f"debug-rank{record.rank}.jsonl", record)
    run = read_run(folders["good"])
    assert len(run.records) == len(GOOD.records)
    assert compare(GOOD, run).first[0].step == 40


def test_mistakes_name_the_folder(folders: dict[str, Path], tmp_path: Path, capsys: Any) -> None:
    other = tmp_path / "other"
    append(other / "training.jsonl", TrainingRecord(configuration="x", steps=1))
    late = write_run(tmp_path / "late", made_run(steps=range(200, 210, 5)))
    cases = [
        ([str(other), str(other)], f"{other}: no debug record in it"),
        ([str(tmp_path / "absent"), str(other)], "absent: no such file or folder"),
        ([str(folders["good"]), str(late)], f"{late}: measured none of the steps of"),
        ([str(folders["good"]), str(folders["bad"]), "--top", "0"], "top: 0 is not an integer"),
    ]
    for words, message in cases:
        with pytest.raises(SystemExit) as stopped:
            main(["compare", *words])
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err


def test_places_that_one_run_lacks_are_told(folders: dict[str, Path], capsys: Any) -> None:
    fewer = DebugRun("fewer", [r for r in GOOD.records if r.name != TABLES[0]])
    differs = compare(GOOD, fewer)
    assert {place.name for place in differs.only_a} == {"t_0"}
    assert differs.first == []
    folder = write_run(folders["good"].parent / "fewer", fewer)
    main(["compare", str(folders["good"]), str(folder)])
    assert "B lacks: t_0, forward; t_0, backward." in (capsys.readouterr().out)


def test_shadows_are_not_compared() -> None:
    shadow = [
        dataclasses.replace(r, is_shadow=True, codec="Rowwise(bits=4)", snr_db=1.0, bits=4.0)
        for r in GOOD.records
        if r.snr_db is not None and r.codec == BACKWARD
    ]
    assert compare(GOOD, DebugRun("shadow", [*GOOD.records, *shadow])).first == []
