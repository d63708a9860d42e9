"""bench-net: real hosts on a network of a given speed, and what is said of what they measured."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import pytest
from studies import measured

from examples.bench.net import __main__ as bench
from examples.bench.net import hosts
from tests.commands import run as run_command
from tests.examples.test_bench_tables import record
from trec_qcomm.lab import records

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "best.yaml"
# Large enough that what else goes over the wire in a step is little beside.
MODEL = "--rows 4000 --batch-size 512 --embedding-dim 128 --min-count 1"
LACKS = " and ".join(hosts.missing())
emulated = pytest.mark.skipif(bool(LACKS), reason=f"needs {LACKS}")


def test_only_the_same_measurement_counts_as_done(tmp_path):
    config = tmp_path / "a.yaml"
    config.write_text("one")
    out = tmp_path / "net.jsonl"
    names, setup = [str(config), "stock"], {"plan": "table_wise", "batch_size": 8, "dim": 8}
    records.append(out, record("a", 1.0), record("stock", 1.0, config=None))
    asked = argparse.Namespace(delay=None, steps=2, ranks_per_host=1, out=out)
    measured = bench.network_records(2, "none", asked, [setup])
    assert bench.missing_configs(measured, names, [setup]) == []
    longer = argparse.Namespace(**vars(asked) | {"steps": 3})
    assert bench.network_records(2, "none", longer, [setup]) == []
    assert bench.network_records(2, "none", asked, [setup | {"batch_size": 9}]) == []
    # With --plans each config has a record of each plan.
    plans = [setup, setup | {"plan": "row_wise"}]
    assert bench.network_records(2, "none", asked, plans) == measured
    assert bench.missing_configs(measured, names, plans) == names
    config.write_text("two")
    assert bench.missing_configs(measured, names, [setup]) == [str(config)]
    # Measured again, the config's last record counts.
    again = record("a", 2.0, config="two")
    records.append(out, again)
    assert again in bench.network_records(2, "none", asked, [setup])
    assert len(bench.network_records(2, "none", asked, [setup])) == 2


@pytest.fixture
def refused(monkeypatch, capfd):
    """Return a function that calls the command where hosts seem to be there; what it says."""
    monkeypatch.setattr(bench, "missing", list)
    monkeypatch.setattr(subprocess, "run", run_command)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["net", *map(str, words)])
        with pytest.raises(SystemExit):
            sys.exit(bench.main())
        return capfd.readouterr().err

    return call


@pytest.mark.parametrize("words", ["--tensorboard", "--dump-rows rows.pt", "--eval-codec off"])
def test_options_that_would_do_nothing_are_refused(words, refused):
    name = words.split()[0].strip("-").replace("-", "_")
    assert f"{name}: an option that bench-net does not have" in refused(*words.split())


def test_bytes_that_could_not_be_told_are_refused_before_the_first_network(tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("dense: {codec: {codec: cast, dtype: bf16}, algorithm: recursive_doubling}")
    asked = argparse.Namespace(configs=["stock", str(config)], hosts=[2, 3], ranks_per_host=1)
    setup = {"plan": "table_wise"}
    bench.check_counts(asked, [setup])
    asked.ranks_per_host = 2
    with pytest.raises(ValueError, match=r"mine.yaml: dense: algorithm: recursive_doubling"):
        bench.check_counts(asked, [setup])
    config.write_text("ids: {codec: packed}")
    bench.check_counts(asked, [setup])
    with pytest.raises(ValueError, match=r"mine.yaml: ranks_per_node: 4"):
        bench.check_counts(asked, [setup, {"plan": "two_level", "ranks_per_node": 4}])


def test_the_command_refuses_them_before_it_builds_a_network(tmp_path, refused):
    config, out = tmp_path / "mine.yaml", tmp_path / "net.jsonl"
    config.write_text("dense: {codec: {codec: cast, dtype: bf16}, algorithm: recursive_doubling}")
    said = refused("--ranks-per-host", 2, "--hosts", 2, "--configs", config, "--out", out)
    assert "mine.yaml: dense: algorithm: recursive_doubling: the share that leaves" in said
    assert "[1/" not in said


@emulated
def test_a_link_is_as_slow_as_told(tmp_path):
    code = """
import os, socket, sys, time
if os.environ["RANK"] == "0":
    peer, _ = socket.create_server(("0.0.0.0", 7000)).accept()
    peer.sendall(bytes(4_000_000))
    peer.recv(1)
else:
    for _ in range(100):
        try:
            s = socket.create_connection((os.environ["MASTER_ADDR"], 7000), timeout=30)
            break
        except OSError:
            time.sleep(.05)
    begin, n = time.perf_counter(), 0
    while n < 4_000_000:
        n += len(s.recv(1 << 16))
    open(sys.argv[1], "w").write(str(time.perf_counter() - begin))
"""
    with hosts.Hosts(2, "40mbit") as network:
        network.run([sys.executable, "-c", code, str(tmp_path / "s")], timeout_s=60)
    seconds = float((tmp_path / "s").read_text())
    assert 0.5 < seconds < 2.0  # .8 s, less what the bucket lets through at once
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert network._tag not in names.stdout


def test_overlapping_spans_cover_their_union():
    assert measured.covered([]) == 0
    assert measured.covered([(5, 7), (0, 3), (1, 2), (2, 4), (7, 8)]) == 4 + 3


@emulated
@pytest.mark.parametrize(
    ("end", "words"), [("sys.exit(3)", "exit status 3"), ("os.abort()", "SIGABRT")]
)
def test_a_host_that_fails_ends_the_others(end, words):
    code = f"import os, sys, time; {end} if os.environ['RANK'] == '1' else time.sleep(600)"
    begin = time.monotonic()
    with (
        pytest.raises(RuntimeError, match=f"host 1 of 2 at none failed: {words}"),
        hosts.Hosts(2, "none") as network,
    ):
        network.run([sys.executable, "-c", code], timeout_s=120)
    assert time.monotonic() - begin < 60


@emulated
@pytest.mark.dist
@pytest.mark.slow
def test_measures_plain_torchrec_and_a_preset(tmp_path):
    out = tmp_path / "net.jsonl"
    command = [sys.executable, "-m", "examples.bench.net", "--hosts", "2", "--rate", "none"]
    command += ["--steps", "2", "--out", out, "--timeline", tmp_path / "parts", *MODEL.split()]
    command += ["--timeout", "100", "--configs", "stock", "stock_powersgd", CONFIG]
    done = run_command(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    stock, low_rank, best = measured = records.read(out)
    assert [r.configuration for r in measured] == ["stock", "stock_powersgd", "best"]
    parts = {f"{r.configuration} {r.case['part']}" for r in records.read(tmp_path / "parts")}
    assert parts >= {"stock rows", "stock gradients", "stock dense", "best codec", "best dense"}
    dense_nbytes = best.traffic[0]["dense"].raw_nbytes
    # A host's counter has what TCP sent again, too, so the host that sent least is the one to ask.
    assert min(stock.sent_nbytes) - min(low_rank.sent_nbytes) > 0.8 * dense_nbytes
    assert max(best.sent_nbytes) < min(low_rank.sent_nbytes)
    assert min(best.breakdown_s[part] for part in ("encode", "lookup", "dense", "optimizer")) > 0
    assert all(record.breakdown_s["all-to-all"] > 0 for record in measured)
    assert "| lookup [ms] |" in done.stdout
    assert best.losses[0] == pytest.approx(stock.losses[0], rel=1e-3)
    assert "best on 2 hosts at none" in done.stdout
