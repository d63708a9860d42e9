"""Files of records: what is written is read back, and what is wrong is named with file and line."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trec_qcomm.lab import records
from trec_qcomm.lab.records import Percentiles, TrafficBytes

ENVIRONMENT = records.Environment(
    commit="abc1234", versions={"torch": "2.13.0"}, hardware={"num_cpus": 2}, omp_num_threads="1"
)
SHARED: dict[str, Any] = {
    "config": "embedding: []\n",
    "setup": {"batch_size": 64, "data": "rows.tsv", "lr": 0.02, "is_shuffled": True},
    "seed": 3,
    "environment": ENVIRONMENT,
    "time": 1.5,
}
STEP_S = Percentiles(p20=0.1, p50=0.2, p80=1)
TRAFFIC = {"dense": TrafficBytes(raw_nbytes=8, distinct_nbytes=8.0, wire_nbytes=2.5)}
EVERY_KIND = (
    records.TrainingRecord(
        configuration="int4", steps=2, num_ranks=2, losses=(0.7, 0.6), metrics={"ne": 0.9},
        metrics_exact={"ne": 0.8}, progressive_logloss=0.65, step_s=STEP_S, traffic=TRAFFIC,
        tables={
            "t": records.TableTraffic(
                forward=TrafficBytes(wire_nbytes=1), backward=TrafficBytes(wire_nbytes=2),
                num_bags=4, num_sent=2, tolerances=(0.1, 0.2),
            )
        },
        shardings={"table_wise": 26}, run="mine", **SHARED,
    ),
    records.ProgressRecord(configuration="int4", step=1, run="mine", loss=0.7, **SHARED),
    records.NetworkRecord(
        configuration="int4", num_hosts=2, rate="100mbit", num_steps=3, step_s=STEP_S,
        sent_nbytes=(1.0, 2), sent_packets=(3, 4), traffic=(TRAFFIC, TRAFFIC), **SHARED,
    ),
    records.StudyRecord(
        configuration="int4", num_ranks=4, seconds=2.5,
        training=records.SeedTraining(
            steps=2, progressive_logloss=0.5, metrics={"ne": 1}, metrics_exact={"ne": 1}
        ),
        evaluation=records.SeedEvaluation(metrics={"ne": 1}, metrics_exact={"ne": 1}), **SHARED,
    ),
    records.CodecRecord(
        configuration="rowwise 4", is_ours=True, values="rows", dim=64, threads=1, ratio=8,
        encode_gb_s=STEP_S, decode_gb_s=STEP_S, **SHARED,
    ),
    records.BenchRecord(
        configuration="rowwise 4", bench="gpu", case={"rows": 4}, figures={"ms": 0.5}, **SHARED
    ),
    records.ValidationRecord(
        configuration="int4", num_hosts=2, rate="none", predicted_s=1, measured_s=2,
        is_fitted=False, fit={"wait": 0.5}, **SHARED,
    ),
    records.ScaleRecord(
        configuration="int4", num_gpus=8, plan="tw", network_gbit_s=100, step_s=0.1,
        communication_share=0.5, parts_s={"ids": 0.1}, assumed={"overlap": None}, **SHARED,
    ),
    records.BreakEvenRecord(
        configuration="int4", against="stock", num_gpus=8, plan="tw", pays="below",
        network_gbit_s=3.5, **SHARED,
    ),
    records.DebugRecord(
        configuration="int4", rank=1, step=100, name="t", direction="backward", codec="Float6()",
        num_rows=2, snr_db=9.5, **SHARED,
    ),
    records.SearchRecord(
        configuration="a", stage="probe", num_ranks=2, table="t", direction="forward",
        codec="Float6()", figures={"nbytes": 8.0}, **SHARED,
    ),
    records.TableSizesRecord(
        configuration="int4", num_ranks=2, num_steps=1, **SHARED,
        tables={
            "t": records.TableSizes(
                dim=8, num_bags=4, num_distinct=2,
                forward=(records.SegmentSizes(dim=8, num_rows=(1, 2), nbytes=(9, 18)),),
            )
        },
    ),
    records.GuardRecord(
        configuration="int4", step=10, probe=1, event="raise", reason="loss", message="m", **SHARED
    ),
    records.GuardProbeRecord(
        configuration="int4", step=10, probe=1, limit_ne=0.02, forward={"t": 1}, **SHARED
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OwnRecord(records.Record, kind="tests.own"):
    answer: int


def line(**changes: Any) -> str:
    """The line of a with members replaced, or left out where they are `...`."""
    members = json.loads(json.dumps(CODEC)) | changes
    return json.dumps({name: value for name, value in members.items() if value is not ...})


CODEC = {
    "kind": "codec", "version": 1, "configuration": "ours", "is_ours": True, "values": "rows",
    "dim": 64, "threads": 1, "ratio": 8.0,
    "encode_gb_s": {"p20": 1.0, "p50": 2.0, "p80": 3.0},
    "decode_gb_s": {"p20": 1.0, "p50": 2.0, "p80": 3.0},
}  # fmt: skip


def test_every_kind_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "all.jsonl"
    records.append(path, *EVERY_KIND)
    assert records.read(path) == list(EVERY_KIND)
    kinds = {kind for kind, t in records.Record.kinds.items() if t.__module__ != __name__}
    assert {r["kind"] for r in map(json.loads, path.read_text().splitlines())} == kinds
    first, second, *_ = records.read(path)
    assert (first.origin, second.origin) == (
        records.Origin(str(path), 1),
        records.Origin(str(path), 2),
    )
    before = path.read_bytes()
    records.append(path, *records.read(path))
    assert path.read_bytes() == before * 2


def test_a_kind_of_a_program_of_its_own(tmp_path: Path) -> None:
    record = OwnRecord(configuration="a", answer=42)
    records.append(tmp_path / "own.jsonl", record)
    assert records.read(tmp_path / "own.jsonl") == [record]
    with pytest.raises(ValueError, match="kind 'codec': is already CodecRecord"):

        class Another(records.Record, kind="codec"):
            pass


def test_only_a_few_fields_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "few.jsonl"
    path.write_text('{"kind": "training", "version": 1, "configuration": "a", "steps": 2}\n')
    (record,) = records.read(path)
    assert record == records.TrainingRecord(configuration="a", steps=2)
    records.append(path, record)
    assert json.loads(path.read_text().splitlines()[1]) == {
        "kind": "training", "version": 1, "configuration": "a", "steps": 2, "seed": 0,
        "num_ranks": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind": "codec", "ver', "not JSON"),
        ("[1]", "expected an object, got list"),
        (line(dim="?").replace('"?"', "9" * 5000), "a number beyond .* float64: 9{20}[.]{3}$"),
        (line(ratio="?").replace('"?"', "-1" + "0" * 309), "a number beyond .* float64: -10"),
        (line(ratio="?").replace('"?"', "1e400"), "a number beyond .* float64: 1e400"),
        (line(version=...), "version: missing; this line was written before records had versions"),
        (line(version=2), r"version: 2 is not one of \(1,\)"),
        (line(kind="way"), "kind: 'way' is not one of .*training"),
        (line(kind=...), "top level: expected the name of a kind or .*; kinds: .*training"),
        (line(way="a"), "way: unknown key; allowed: version, configuration, .*"),
        (line(ratio=...), "ratio: missing"),
        (line(ratio="8"), "ratio: '8' is not a number"),
        (line(dim=True), "dim: True is not an integer"),
        (line(dim=6.5), "dim: 6.5 is not an integer"),
        (line(is_ours=1), "is_ours: 1 is not true or false"),
        (line(values="ids"), r"values: 'ids' is not one of \('rows', 'gradients'\)"),
        (line(encode_gb_s={"p20": 1}), "encode_gb_s.p50: missing"),
        (line(encode_gb_s=None), "encode_gb_s: expected a mapping of p20, p50, p80 .*, got None"),
        (
            line(setup={"a": [1]}),
            r"setup.a: \[1\] is not a text or an integer or a number or true or false",
        ),
        (
            line(environment={"versions": {"torch": 2}}),
            "environment.versions.torch: 2 is not a text",
        ),
    ],
)
def test_a_wrong_line_names_file_line_and_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(f"{line()}\n\n{text}\n")
    with pytest.raises(ValueError, match=rf"odd\.jsonl, line 3: {message}"):
        records.read(path)


def test_nothing_is_appended_behind_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_text(line() + "\n" + line()[:40])
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"cut\.jsonl, line 2: was cut short; take it away"):
        records.append(path, *EVERY_KIND)
    assert path.read_bytes() == before


def test_folders_are_searched_and_what_is_not_there_is_named(tmp_path: Path) -> None:
    deep, flat = tmp_path / "deep" / "b.jsonl", tmp_path / "a.jsonl"
    records.append(deep, EVERY_KIND[0])
    records.append(flat, EVERY_KIND[1])
    assert records.read_all([tmp_path, flat, deep]) == [EVERY_KIND[1], EVERY_KIND[0]]
    with pytest.raises(ValueError, match="no such file or folder"):
        records.read_all([tmp_path / "absent"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no \*.jsonl in this folder"):
        records.read_all([tmp_path / "empty"])
    (tmp_path / "empty" / "c.jsonl").touch()
    with pytest.raises(ValueError, match="the files hold no record"):
        records.read_all([tmp_path / "empty"])


def test_the_environment_is_that_of_the_process(tmp_path: Path) -> None:
    inside = records.Environment.current(
        ("torch", "no-such-package"), repository=Path(__file__).parent, hardware={"gpu": "none"}
    )
    assert set(inside.versions) == {"python", "torch"}
    assert inside.hardware["gpu"] == "none"
    assert int(inside.hardware["num_cpus"]) >= 1
    assert records.Environment.current(repository=tmp_path).commit is None


def test_groups_hold_every_kind_of_traffic_once() -> None:
    grouped = [kind for kinds in records.TRAFFIC_GROUPS.values() for kind in kinds]
    assert sorted(grouped) == sorted(records.TRAFFIC_KINDS)
