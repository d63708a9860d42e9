"""bench-codec: what takes part, what is refused, what is written, and what goes on.

The other compressors need not be installed: two of them copy here.
"""

import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from options import build_parser, check_options

from examples.bench.codecs import __main__ as bench
from examples.bench.codecs import compressors, entries, timing, workload
from examples.bench.codecs.table import break_even_gb_s
from trec_qcomm.core.registry import codec_names, codec_type
from trec_qcomm.lab.records import Environment
from trec_qcomm.testing import frame_of
from trec_qcomm.wire import frame

COPY, ZSTD = "zstd-1", compressors.BASELINE
DIM = 16


def copying(*_):
    return (lambda x: x.tobytes()), bytes


@pytest.fixture(autouse=True)
def no_other_installed(monkeypatch):
    for module in compressors.PIP:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(compressors._LOSSLESS, COPY, ("numpy", copying))
    monkeypatch.setitem(compressors._BOUNDED, ZSTD, ("numpy", compressors.Quantized, copying))


@pytest.fixture
def dumped(tmp_path):
    """Three tables of 40 samples, as --dump-rows writes them."""
    generator = torch.Generator().manual_seed(0)
    ids = {f"t{n}": torch.arange(40) % n for n in (20, 3, 7)}
    rows = {
        t: torch.randn(40, DIM, generator=generator)[numbers] * 0.1 for t, numbers in ids.items()
    }
    gradients = {t: torch.randn(40, DIM, generator=generator) * 1e-4 for t in ids}
    made = {"rows": rows, "gradients": gradients, "ids": ids, "meta": {"seed": 5}}
    torch.save(made, tmp_path / "small.pt")
    return tmp_path / "small.pt"


@pytest.fixture
def run(dumped, monkeypatch, capsys):
    """Return a function that calls main and gives (exit status, output, records)."""
    out = dumped.parent / "codec.jsonl"

    def call(*words):
        command = ["run.py", "--rows", str(dumped), "--samples", "40", "--repeats", "2"]
        monkeypatch.setattr(sys, "argv", [*command, "--out", str(out), *words])
        status = bench.main()
        return status, capsys.readouterr(), bench._read(out)

    monkeypatch.setattr(timing, "LEAST_S", 1e-6)
    return call


def workload_of(path, kind):
    (one,) = workload.read_workloads(path, [kind], 40)
    return one


def find(case, name):
    return next(e for e in entries.entries(case, 0.01) if e.name == name)


def mistake_of(entry, groups):
    """Return what is wrong with an entry's round trip."""
    with timing.threads(len(groups)) as pool:
        return timing.mistake(entry, timing.round_trip(entry, groups, pool), groups)


def test_every_codec_is_measured(run):
    status, said, records = run("--threads", "1", "2")
    assert status == 0, said.err
    for r in records:
        assert (r.error_over_bound is not None) == bool(r.bound)
        assert r.is_ours == (r.config is not None)
        assert r.raw_nbytes == 30 * DIM * 4  # rows of distinct ids
        assert r.ratio == r.raw_nbytes / r.wire_nbytes
        assert (r.setup, r.seed, r.dim) == ({"data": "small.pt"}, 5, DIM)
        for rate in (r.encode_gb_s, r.decode_gb_s):
            assert 0 < rate.p20 <= rate.p50 <= rate.p80
        # On that link sending raw rows takes as long as coding them and sending less.
        coding = r.raw_nbytes / r.encode_gb_s.p50 + r.raw_nbytes / r.decode_gb_s.p50
        assert (r.raw_nbytes - r.wire_nbytes) == pytest.approx(r.break_even_gb_s * coding)
        if r.bound == 0:
            assert r.max_error == 0
        elif r.bound is not None:
            assert 0 < r.error_over_bound <= 1
    shipped = {n for n in codec_names() if codec_type(n).__module__.startswith("trec_qcomm.")}
    ours = {yaml.safe_load(r.config)["codec"] for r in records if r.is_ours}
    assert ours == shipped  # tests have others
    theirs = {r.configuration: r.bound for r in records if not r.is_ours}
    assert {name for name in theirs if theirs[name] is not None} == {COPY, ZSTD}
    assert {"torch fp16", "FBGEMM INT8", "FBGEMM INT4", "FBGEMM MX4"} <= set(theirs)
    assert {(r.values, r.threads) for r in records} == {
        (kind, t) for kind in ("rows", "gradients") for t in (1, 2)
    }
    assert "left out: zfp: pip install zfpy (" in said.err
    assert said.out.splitlines()[-1].startswith(f"{len(records)} measurements, {len(records)} of ")


def test_bytes_are_those_of_frames(run, dumped):
    """Bytes are those of frames but for headers, and as many on two threads as on one."""
    _, _, records = run("--threads", "1", "2")
    wire = {(r.configuration, r.values, r.threads): r.wire_nbytes for r in records}
    for kind in ("rows", "gradients"):
        case = workload_of(dumped, kind)
        sizes = [len(rows) for rows in case.tables.values()]
        for one in entries.entries(case, 0.01):
            if one.codec is None or one.codec.name == "forward_mask":
                continue
            sealed, segments = frame_of(one.codec, torch.cat([*case.tables.values()]), sizes)
            expected = sealed.numel() - frame.overhead_nbytes(segments.num_segments)
            assert wire[one.name, kind, 1] == wire[one.name, kind, 2] == expected


def test_forward_mask_sends_what_topk_kept(dumped):
    case = workload_of(dumped, "gradients")
    (group,) = workload.deal(case, 1)
    one, top = (find(case, name).make(group) for name in ("forward_mask 10 %", "topk 10 %"))
    top.rows = group.forward
    for member in (one, top):
        member.encode()
        member.decode()
    assert torch.equal(one.decoded != 0, top.decoded != 0)
    assert 0 < one.nbytes() < top.nbytes()


def test_break_even():
    assert break_even_gb_s(2.0, encode=4.0, decode=4.0) == 1.0
    assert break_even_gb_s(4.0, 3.0, 6.0) == 1.5
    assert break_even_gb_s(1.0, 3.0, 6.0) == 0.0
    assert break_even_gb_s(0.5, 3.0, 6.0) < 0


def test_what_is_there_is_not_measured_again(run):
    few = ("--threads", "1", "--codecs", "identity", "error_bounded bitpack", "torch fp16")
    _, _, first = run(*few)
    assert [r.configuration for r in first] == [
        "identity",
        "error_bounded bitpack",
        "torch fp16",
    ] * 2
    status, said, again = run(*few)
    assert (status, again) == (0, first)
    assert "`error_bounded bitpack`" in said.out
    assert "6 measurements, 0 of them new" in said.out
    _, _, more = run(*few, "--bound", "0.03")
    assert more[:6] == first
    assert [(r.configuration, r.bound) for r in more[6:]] == [("error_bounded bitpack", 0.03)] * 2
    _, said, more = run("--threads", "2", *few[2:], "--kind", "rows")
    assert [(r.threads, r.values) for r in more[8:]] == [(2, "rows")] * 3
    assert "3 measurements, 3 of them new" in said.out


def test_speeds_of_other_versions_and_commits_are_not_shown_as_new(run, monkeypatch):
    few = ("--threads", "1", "--codecs", "identity", "float6", "--kind", "rows")
    now = Environment(commit="now", versions={"numba": "0.2"}, hardware={"num_cpus": 2})
    others = [now, replace(now, commit="later"), replace(now, versions={"numba": "0.1"})]
    environments = iter(others)
    monkeypatch.setattr(bench.Environment, "current", lambda *_: next(environments))
    _, said, first = run(*few)
    assert "of other commits" not in said.out
    _, said, again = run(*few)
    assert again == first
    last = said.out.splitlines()[-1]
    assert "2 measurements, 0 of them new, 2 of other commits (now), " in last
    _, said, again = run(*few)
    assert "2 measurements, 2 of them new, " in said.out.splitlines()[-1]
    assert [r.environment.versions for r in again[2:]] == [{"numba": "0.1"}] * 2


def test_an_interrupted_run_goes_on(run, dumped):
    few = ("--threads", "1", "--codecs", "identity", "float6", "--kind", "rows")
    _, _, both = run(*few)
    out = dumped.parent / "codec.jsonl"
    out.write_text(out.read_text().splitlines(keepends=True)[0])
    _, _, again = run(*few)
    assert again[0] == both[0]
    assert [r.configuration for r in again] == ["identity", "float6"]
    out.write_text(out.read_text()[:-20])
    with pytest.raises(SystemExit, match=r"error: .*codec\.jsonl, line 2: .*cut short"):
        run(*few)
    out.write_text(out.read_text().splitlines(keepends=True)[0] + "7\n")
    with pytest.raises(SystemExit, match=r"codec\.jsonl, line 2: expected an object"):
        run(*few)


def test_ctrl_c_says_how_to_go_on(run, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(timing, "in_turn", interrupt)
    status, said, records = run("--threads", "1", "--codecs", "identity")
    assert (status, records) == (bench.INTERRUPTED, [])
    assert "the same command goes on with" in said.err


def test_what_breaks_its_bound_is_not_timed(run, monkeypatch):
    def forgets(*_):
        return (lambda q: (q // 2 * 2).tobytes()), bytes

    monkeypatch.setitem(compressors._BOUNDED, ZSTD, ("numpy", compressors.Quantized, forgets))
    status, said, records = run("--threads", "1", "--codecs", ZSTD, "identity", "--kind", "rows")
    assert status == 1
    assert [r.configuration for r in records] == ["identity"]
    last = said.out.splitlines()[-1]
    assert f"REFUSED: {ZSTD} (rows, dim 16, threads 1): an error of " in last
    assert "times the bound; not timed" in said.err


class Damaged:
    """A compressor whose decoded values something happens to."""

    def __init__(self, sound, damage):
        self.sound, self.damage, self.out = sound, damage, sound.out
        self.encode, self.nbytes = sound.encode, sound.nbytes

    def decode(self):
        self.sound.decode()
        self.out = self.damage(self.sound.out.copy())


def far(x):
    x[5] += 1e3
    return x


DAMAGE = {
    "far": (far, "bits|bound|definition|allow"),
    "short": (lambda x: x[:-1], "479 float32 for 480 values"),
    "double": (lambda x: x.astype(np.float64), "480 float64 for 480 values"),
    "unwritten": (lambda x: np.where(np.arange(480) == 7, np.nan, x), "bits|bound|def|allow"),
    "no nan": (lambda x: np.where(np.isnan(x), np.float32(0), x), "NaN is lost"),
}
SOME = ("identity", "rowwise 4", "error_bounded rans", "topk 10 %", "float6", COPY, "torch bf16")


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", SOME)
def test_a_wrong_round_trip_is_named(name, damage, dumped):
    case = workload_of(dumped, "rows")
    groups, sound = workload.deal(case, 1), find(case, name)
    assert mistake_of(sound, groups) is None
    happens, reason = DAMAGE[damage]
    broken = replace(sound, make=lambda group: Damaged(sound.make(group), happens))
    assert re.search(reason, mistake_of(broken, groups) or "nothing")


def test_tables_are_dealt_whole(dumped):
    case = workload_of(dumped, "rows")
    assert [len(p.rows) for p in workload.deal(case, 2)] == [20, 10]
    many = workload.deal(case, 64)
    assert [p.segments.num_rows.tolist() for p in many] == [[20], [7], [3]]
    (one,) = workload.deal(case, 1)
    assert torch.equal(one.rows, torch.cat([case.tables[t] for t in ("t20", "t7", "t3")]))


def test_members_work_at_the_same_time():
    class Meets:
        def __init__(self, door):
            self.door = door

        def encode(self):
            self.door.wait(timeout=30)

    door = threading.Barrier(3)
    with timing.threads(3) as pool:
        assert timing.Workers([Meets(door) for _ in range(3)], pool).seconds("encode", 2) >= 0


class Idle:
    def encode(self):
        pass


def test_waiting_for_a_core_is_left_out(tmp_path, monkeypatch):
    """A call of 500 ms in which the kernel's count of waiting grows by 300 ms."""

    class Waits:
        def encode(self):
            timing.SCHEDSTAT.write_text("9 302000000 9")

    clock = iter((10.0, 10.5))
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(timing, "SCHEDSTAT", tmp_path / "schedstat")
    timing.SCHEDSTAT.write_text("5 2000000 7")
    with timing.threads(1) as pool:
        assert timing.Workers([Waits()], pool).seconds("encode") == pytest.approx(0.2)
    timing.SCHEDSTAT.unlink()
    assert timing.waited_s() == 0


def test_waiting_just_before_a_call_does_not_count(monkeypatch):
    """A time below 0 would end in calls without end: what is taken off must have been timed."""
    clock = iter((10.0, 10.5))
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    left = []
    monkeypatch.setattr(timing, "waited_s", lambda: left.append(clock.__length_hint__()) or 0.0)
    with timing.threads(1) as pool:
        assert timing.Workers([Idle()], pool).seconds("encode") == 0.5
    assert left == [1, 1]  # both after the clock's first look and before its second


def test_without_rows_a_training_makes_them(tmp_path, monkeypatch):
    commands = []

    def pretend(command, **_):
        commands.append(command)
        Path(command[-1]).write_text("rows")

    monkeypatch.setattr(subprocess, "run", pretend)
    for _ in range(2):
        path = workload.train(tmp_path, 16, 3)
        assert path.read_text() == "rows"
    (command,) = commands
    options = build_parser().parse_args(command[2:])
    check_options(options)
    assert (options.embedding_dim, options.seed, options.ranks) == (16, 3, 1)
    assert options.dump_rows != path


def test_a_file_that_is_no_dump_is_named(run, dumped):
    made = torch.load(dumped, weights_only=True)
    del made["meta"]
    torch.save(made, dumped)
    with pytest.raises(SystemExit, match=r"error: .*small\.pt: no meta\.seed; expected a file of"):
        run()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--codecs rowwise", "--codecs: invalid choice: 'rowwise' (choose from"),
        ("--bound 1", "--bound: 1: expected more than 0 and less than 1"),
        ("--repeats 0", "--repeats: 0: expected at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(words, message, run, capsys):
    with pytest.raises(SystemExit):
        run(*words.split())
    assert message in capsys.readouterr().err


def test_the_table_says_what_was_measured(run):
    _, said, records = run("--threads", "1", "2", "--codecs", "identity", "rowwise 4", "topk 10 %",
                           "error_bounded bitpack", "forward_mask 10 %")  # fmt: skip
    lines = {line.split(" | ")[0].strip("| `"): line for line in said.out.splitlines()}
    head = "dim 16 | rows: ratio | encode | decode | break-even | error | gradients: ratio"
    assert lines["dim 16"].startswith(f"| {head}")
    assert "| none, none | 0 |" in lines["identity"]
    assert lines["forward_mask 10 %"].startswith("| `forward_mask 10 %` |  |  |  |  |  | ")
    assert lines["error_bounded bitpack"].count(" of 1 % |") == 2
    one, two = (r for r in records if (r.configuration, r.values) == ("rowwise 4", "rows"))
    assert (one.threads, two.threads) == (1, 2)
    cells = lines["rowwise 4"].split(" | ")
    assert cells[1] == f"{one.ratio:.2f}"
    for cell, what in zip(cells[2:4], ("encode_gb_s", "decode_gb_s"), strict=True):
        shown = [float(word) for word in cell.split(", ")]
        assert shown == pytest.approx([getattr(r, what).p50 for r in (one, two)], rel=0.5, abs=0.01)
