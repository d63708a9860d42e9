"""The debugger in trainings of two ranks: it changes nothing, and names what was planted."""

import json

import pytest

from tests.lab.debug.definitions import offline_figures
from tests.lab.debug.training.programs import BASE, FAULT_STEP, SHADOWS, STEPS, run
from tests.rank_programs import results_of, run_programs
from trec_qcomm import ErrorBounded
from trec_qcomm.lab.debug.findings import findings
from trec_qcomm.lab.debug.recorded import read_run
from trec_qcomm.lab.records import read_all

FAULTS = {  # what is found first, on which ranks and since which step
    "scaled_table": ("drift", {0}, FAULT_STEP, "tw_first", "forward"),
    "nan_gradient": ("nan", {1}, FAULT_STEP, "over.weight", "dense"),
    "heavy_tail": ("lost", {0, 1}, FAULT_STEP, "tw_first", "backward"),
    "loose_bound": ("snr", {0}, 0, "cw", "forward"),
    "growing_residual": ("residual", {0, 1}, 3, "over.weight", "residual"),
}
PROGRAMS = ("same_bits", "no_fault", *FAULTS, "attribution")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("debug")


@pytest.fixture(scope="module")
def programs(folder):
    return run_programs(
        run, 2, {name: (name, str(folder / name)) for name in PROGRAMS}, timeout_s=300
    )


def findings_in(folder):
    """Return what stands out in the files of all ranks."""
    return findings(read_run(folder).records)


@pytest.mark.dist
def test_training_is_the_same_bit_by_bit(programs):
    for rank in results_of(programs["same_bits"]):
        assert rank["same"]
        assert rank["bytes"][0] == rank["bytes"][1]


@pytest.mark.dist
def test_off_there_is_no_observer(programs):
    """Then collectives and all-reduces run the code that they run without a debugger."""
    for rank in results_of(programs["same_bits"]):
        without, watched, stopped = rank["observers"]
        assert without == stopped == (0, 0)
        assert watched == (3, 2)  # row-, table- and column-wise; dense and data-parallel


@pytest.mark.dist
def test_lines_are_the_records_in_memory(programs, folder):
    in_memory = [r for rank in results_of(programs["same_bits"]) for r in rank["records"]]
    lines = read_all([folder / "same_bits"])
    assert lines == in_memory
    keys = [
        (r.rank, r.step, r.name, r.direction, r.codec, r.is_shadow, r.site, r.module) for r in lines
    ]
    assert len(set(keys)) == len(keys)
    assert {r.step for r in lines} == set(range(0, STEPS, 2))
    assert {r.direction for r in lines} == {
        "forward", "backward", "dense", "data_parallel", "residual",
    }  # fmt: skip
    shadows = {r.codec for r in lines if r.is_shadow}
    assert shadows == set(map(repr, SHADOWS))
    text = (folder / "same_bits" / "debug-rank0.jsonl").read_text()
    assert all("NaN" not in line and "Infinity" not in line for line in text.splitlines())
    assert {json.loads(line)["kind"] for line in text.splitlines()} == {"debug"}


@pytest.mark.dist
def test_figures_are_those_of_the_rows_that_were_captured(programs):
    num_checked = 0
    for rank in results_of(programs["same_bits"]):
        for record in rank["records"]:
            if record.step != 2 or record.direction != "forward":
                continue
            used = (BASE.embedding[0].forward, *SHADOWS)
            codec = next(codec for codec in used if repr(codec) == record.codec)
            if record.name == "tw_first" and isinstance(codec, ErrorBounded):  # a sum over 2 ranks
                codec = ErrorBounded(codec.bound / 2)
            expected = offline_figures(codec, rank["rows"][record.name])
            for name in expected.keys() - {"tolerance"}:
                figure = pytest.approx(expected[name], rel=1e-9, abs=1e-13)
                assert getattr(record, name) == figure, name
            num_checked += 1
    assert num_checked == 3 * (3 + 4)  # codecs; tables that rank 0 and rank 1 send


@pytest.mark.dist
def test_a_healthy_training_has_no_findings(programs, folder):
    assert findings_in(folder / "no_fault") == []
    for summary in results_of(programs["no_fault"]):
        *_, noisy, measured = summary.splitlines()
        assert noisy == "Nothing stands out."
        assert measured.startswith("Measuring took ")
        assert "The noisiest of each direction:" in summary


@pytest.mark.dist
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_first(programs, folder, fault):
    results_of(programs[fault])
    kind, ranks, step, name, direction = FAULTS[fault]
    every = findings_in(folder / fault)
    named = next(f for f in every if f.kind == kind)
    assert (named.step, named.place.name, named.place.direction) == (step, name, direction)
    assert ranks & set(named.ranks)
    assert every[0].place.name == name
    if fault != "heavy_tail":  # where the column that was made larger drifts, too
        assert max(every, key=lambda f: f.severity).kind == kind


@pytest.mark.dist
def test_a_summary_says_what_to_do(programs):
    summary = results_of(programs["heavy_tail"])[0]
    assert ": step 2, tw_first, backward: " in summary
    assert "take more bits, or float6" in summary


@pytest.mark.dist
def test_attribution_names_the_table_and_leaves_no_trace(programs):
    first, second = results_of(programs["attribution"])
    assert first["result"] == second["result"]
    effects = first["result"].tables
    assert {effect.table for effect in effects} == {"tw_first", "tw_last", "cw", "cw_shared"}
    assert effects[0].table == "tw_first"
    assert abs(effects[0].added_loss) > 10 * abs(effects[1].added_loss)
    with_all, with_none = first["result"].loss, first["result"].exact_loss
    assert with_all - with_none == pytest.approx(effects[0].added_loss, rel=0.1)
    assert str(first["result"]).splitlines()[1].endswith("  tw_first")
    for rank in (first, second):
        assert rank["same"]
        assert rank["goes_on"]
        assert len(rank["drawn"]) == 2 + len(effects)
        assert len(set(rank["drawn"])) == 1
