"""The command: what it prints and writes, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest

from tests.lab.simulate import sample_records
from trec_qcomm.lab.records import BreakEvenRecord, ScaleRecord, ValidationRecord, read
from trec_qcomm.lab.simulate.command import main
from trec_qcomm.lab.simulate.measured import load_steps
from trec_qcomm.lab.simulate.validation import FIT_CONFIGURATIONS, holds, validate

RESULTS = Path(__file__).resolve().parents[3] / "examples" / "bench" / "results"
COMMITTED = [RESULTS / "links.jsonl", RESULTS / "links_4_hosts.jsonl"]


@pytest.fixture(scope="module")
def sample_path(tmp_path_factory: Any) -> Path:
    path: Path = tmp_path_factory.mktemp("sample") / "net.jsonl"
    return sample_records.write(path, sample_records.everything(path))


@pytest.mark.parametrize("committed", [True, False])
def test_the_command_says_and_writes_all(
    committed: bool, sample_path: Path, tmp_path: Path, capsys: Any
) -> None:
    source = COMMITTED if committed else [sample_path]
    out = tmp_path / "simulate.jsonl"
    words = ["--records", *map(str, source), "--out", str(out), "--gpus", "8,64"]
    words += ["--plans", "tw,twrw"]
    words += ["--network-gbit-s", "100,400"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    records = read(out)
    scale = [record for record in records if isinstance(record, ScaleRecord)]
    limits = [record for record in records if isinstance(record, BreakEvenRecord)]
    assert len(scale) == 2 * 2 * 2 * 4
    assert len(limits) == 2 * 2 * 3
    steps, _ = load_steps(*source)
    predictions = validate(steps, FIT_CONFIGURATIONS)[1]
    assert sum(isinstance(record, ValidationRecord) for record in records) == len(predictions)
    unseen = [p for p in predictions if p.num_hosts == 2 and not p.is_fitted]
    within = sum(map(holds, unseen))
    for record in scale:
        assert record.step_s == pytest.approx(sum(record.parts_s.values()))
        assert record.assumed["encode_gb_s"] == 400
        assert 0 < record.communication_share < 1
        assert "seconds" in record.extrapolated
    for limit in limits:
        assert (limit.pays == "below") == (limit.network_gbit_s is not None)
    assert printed.count("  fitted on") == len(FIT_CONFIGURATIONS)
    assert "assumed, not measured: encode and decode throughput" in printed
    assert printed.count("EXTRAPOLATED") == 2 + 1  # every table of what no run has tested
    last = printed.splitlines()[-1]
    assert f"runs not fitted on: {within} of {len(unseen)} on 2 hosts" in last
    assert ("NOT WITHIN 20 %" in printed) == (not all(map(holds, predictions)))
    assert committed or within == len(unseen) > 0
    assert last.endswith("; throughputs assumed")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "12"], "num_gpus: 12 is neither below gpus_per_node 8 nor a multiple of it"),
        (["--gpus", "0"], "num_gpus: 0 is not an integer >= 1"),
        (["--gpus", "many"], "argument --gpus: invalid list of int value: 'many'"),
        (["--plans", "cw"], "plans: 'cw' is not one of tw, rw, twrw"),
        (
            ["--configs", "stock,int3"],
            "configs: 'int3' was not measured; expected of int8, unique_int4",
        ),
        (["--fit-configs", "int3"], "fit-configs: int3: expected of int8, unique_int4"),
        (["--network-gbit-s", "100,0"], "network-gbit-s: 0.0 is not a finite number > 0"),
        (["--encode-gb-s", "inf"], "encode-gb-s: inf is not a finite number > 0"),
        (["--overlap", "1.5"], "overlap: 1.5 is not a number in [0, 1]"),
        (["--compute-ms", "-1"], "compute-ms: -1.0 is not a finite number >= 0"),
        (["--distinct-share", "0"], "distinct-share: 0.0 is not a number in (0, 1]"),
        (["--gpus-per-node", "0"], "gpus_per_node: 0 is not an integer >= 1"),
        (["--out", "no/such/folder/a.jsonl"], "expected a file in a folder that exists"),
    ],
)
def test_a_mistake_is_named(words: list[str], message: str, sample_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--records", str(sample_path), *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"), [("{", "line 1: not JSON"), ("", "no step that can be used")]
)
def test_a_file_that_is_none_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "net.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_steps(path)
    with pytest.raises(ValueError, match=r"missing.jsonl: cannot be read: "):
        load_steps(tmp_path / "missing.jsonl")


def test_an_output_is_not_overwritten(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "there.jsonl"
    out.write_text("mine")
    with pytest.raises(SystemExit):
        main(["--records", str(COMMITTED[0]), "--out", str(out)])
    assert "exists; --force overwrites it" in capsys.readouterr().err
    assert out.read_text() == "mine"


def test_own_tables_are_the_model(tmp_path: Path, capsys: Any) -> None:
    out, sizes = tmp_path / "own.jsonl", RESULTS / "table_sizes.jsonl"
    words = ["--records", *map(str, COMMITTED), "--sizes", str(sizes), "--out", str(out)]
    words += ["--configs", "stock,best", "--network-gbit-s", "100", "--plans", "rw", "--parts"]
    assert main([*words, "--gpus", "8,64"]) == 0
    printed = capsys.readouterr().out
    assert "parts of a step [ms]: rw, 64 GPUs, 100 Gbit/s\n" in printed
    # A share of the bound for each of 64 ranks takes more bytes than one for each of 8.
    few, many = (r for r in read(out) if isinstance(r, ScaleRecord) and r.configuration == "best")
    assert many.parts_s["forward"] > few.parts_s["forward"]
