"""bench-codec: what takes part, what is refused, what is written, and what goes on."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from options import build_parser, check_options

from examples.bench import command
from examples.bench.codecs import __main__ as bench
from examples.bench.codecs import entries, workload
from trec_qcomm.core.registry import codec_names, codec_type
from trec_qcomm.lab.records import CodecRecord, Environment
from trec_qcomm.testing import frame_of
from trec_qcomm.wire import frame

DIM = 16
FORMATS = {"torch fp16", "torch bf16", "FBGEMM INT8", "FBGEMM INT4", "FBGEMM MX4"}


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
        line = ["run.py", "--rows", str(dumped), "--samples", "40", "--repeats", "2"]
        monkeypatch.setattr(sys, "argv", [*line, "--out", str(out), *words])
        status = bench.main()
        return status, capsys.readouterr(), command.read_so_far(out, CodecRecord)

    monkeypatch.setattr(bench, "LEAST_S", 1e-6)
    return call


def workload_of(path, kind):
    (one,) = workload.read_workloads(path, [kind], 40)
    return one


def find(case, name):
    return next(e for e in entries.entries(case, 0.01) if e.name == name)


def test_every_codec_is_measured(run, dumped):
    """Bytes are those of frames but for headers."""
    status, said, records = run()
    assert status == 0, said.err
    for r in records:
        assert (r.error_over_bound is not None) == bool(r.bound)
        assert r.is_ours == (r.config is not None)
        assert r.raw_nbytes == 30 * DIM * 4  # rows of distinct ids
        assert r.ratio == r.raw_nbytes / r.wire_nbytes
        assert (r.setup, r.seed, r.dim, r.threads) == ({"data": "small.pt"}, 5, DIM, 1)
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
    assert {r.configuration for r in records if not r.is_ours} == FORMATS
    assert said.out.splitlines()[-1].startswith(f"{len(records)} measurements, {len(records)} of ")
    assert "| `forward_mask 10 %` |  |  |  |  |  | " in said.out  # of gradients only

    wire = {(r.configuration, r.values): r.wire_nbytes for r in records}
    for kind in bench.KINDS:
        case = workload_of(dumped, kind)
        sizes = [len(rows) for rows in case.tables.values()]
        for one in entries.entries(case, 0.01):
            if one.codec is None or one.codec.name == "forward_mask":
                continue
            sealed, segments = frame_of(one.codec, torch.cat([*case.tables.values()]), sizes)
            expected = sealed.numel() - frame.overhead_nbytes(segments.num_segments)
            assert wire[one.name, kind] == expected


def test_rows_are_of_distinct_ids_and_gradients_summed(dumped):
    batch = workload.load(dumped, 40)
    distinct = workload.merged(batch)
    for tables in (distinct.rows, distinct.gradients):
        assert {t: len(rows) for t, rows in tables.items()} == {"t20": 20, "t3": 3, "t7": 7}
    assert torch.equal(distinct.rows["t20"], batch.rows["t20"][:20])
    gradients = batch.gradients["t20"]
    assert torch.equal(distinct.gradients["t20"], gradients[:20] + gradients[20:])


def test_what_is_there_is_not_measured_again(run):
    few = ("--codecs", "identity", "error_bounded bitpack", "torch fp16")
    _, _, first = run(*few)
    assert [r.configuration for r in first] == [*few[1:]] * 2
    status, said, again = run(*few)
    assert (status, again) == (0, first)
    assert "`error_bounded bitpack`" in said.out
    assert "6 measurements, 0 of them new" in said.out
    _, _, more = run(*few, "--bound", "0.03")
    assert more[:6] == first
    assert [(r.configuration, r.bound) for r in more[6:]] == [("error_bounded bitpack", 0.03)] * 2


def test_speeds_of_other_versions_and_commits_are_not_shown_as_new(run, monkeypatch):
    few = ("--codecs", "identity", "rowwise 4", "--kind", "rows")
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


def test_an_interrupted_run_goes_on(run, dumped, monkeypatch):
    few = ("--codecs", "identity", "rowwise 4", "--kind", "rows")
    _, _, both = run(*few)
    out = dumped.parent / "codec.jsonl"
    out.write_text(out.read_text().splitlines(keepends=True)[0])
    _, _, again = run(*few)
    assert again[0] == both[0]
    assert [r.configuration for r in again] == ["identity", "rowwise 4"]
    out.write_text(out.read_text()[:-20])
    with pytest.raises(SystemExit, match=r"error: .*codec\.jsonl, line 2: .*cut short"):
        run(*few)

    def interrupt(*_):
        raise KeyboardInterrupt

    out.unlink()
    monkeypatch.setattr(bench, "in_turn", interrupt)
    status, said, records = run(*few)
    assert (status, records) == (command.INTERRUPTED, [])
    assert "the same command goes on with" in said.err


class Damaged:
    """A compressor whose decoded values something happens to."""

    def __init__(self, sound, damage):
        self.sound, self.damage, self.out = sound, damage, sound.out
        self.encode, self.nbytes = sound.encode, sound.nbytes

    def decode(self):
        self.sound.decode()
        self.out = self.damage(self.sound.out.clone())


def with_value(value, where):
    def damage(x):
        x.view(-1)[where] = value
        return x

    return damage


DAMAGE = {
    "far": (with_value(1e3, 5), "bits|bound|definition|allow"),
    "short": (lambda x: x[:-1], r"\[29, 16\] torch.float32 for \[30, 16\]"),
    "double": (lambda x: x.double(), r"\[30, 16\] torch.float64 for \[30, 16\]"),
    "unwritten": (with_value(torch.nan, 7), "bits|bound|def|allow"),
    "no nan": (lambda x: x.nan_to_num(0.0), "NaN is lost"),
}
SOME = ("identity", "rowwise 4", "error_bounded rans", "topk 10 %", "torch bf16")


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", SOME)
def test_a_wrong_round_trip_is_named(name, damage, dumped):
    case = workload_of(dumped, "rows")
    group, sound = workload.grouped(case), find(case, name)
    assert bench.mistake(sound, bench.round_trip(sound, group), group) is None
    happens, reason = DAMAGE[damage]
    broken = replace(sound, make=lambda group: Damaged(sound.make(group), happens))
    assert re.search(reason, bench.mistake(broken, bench.round_trip(broken, group), group) or "")


def test_what_breaks_its_bound_is_not_timed(run, monkeypatch):
    decode = entries.CodecCompressor.decode

    def forgets(self):
        decode(self)
        if self.codec.name == "error_bounded":
            self.out += 0.1

    monkeypatch.setattr(entries.CodecCompressor, "decode", forgets)
    wrong = "error_bounded bitpack"
    status, said, records = run("--codecs", wrong, "identity", "--kind", "rows")
    assert status == 1
    assert [r.configuration for r in records] == ["identity"]
    last = said.out.splitlines()[-1]
    assert f"REFUSED: {wrong} (rows, dim 16): an error of " in last
    assert "times the bound; not timed" in said.err


def test_without_rows_a_training_makes_them(tmp_path, monkeypatch):
    commands = []

    def pretend(words, **_):
        commands.append(words)
        Path(words[-1]).write_text("rows")

    monkeypatch.setattr(subprocess, "run", pretend)
    for _ in range(2):
        path = workload.train(tmp_path, 16, 3)
        assert path.read_text() == "rows"
    (words,) = commands
    options = build_parser().parse_args(words[2:])
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
