"""bench-net: real hosts on a network of a given speed, and what is said of what they measured."""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import in_turn
import measured_command
import measured_steps
import pytest
import torch.distributed as dist
from torchrec.distributed.comm import get_local_size

from examples.bench.net import __main__ as bench
from examples.bench.net import hosts, plans_section, section, tables
from tests.commands import run as run_command
from trec_qcomm.lab import records
from trec_qcomm.lab.records import (
    TRAFFIC_KINDS,
    Environment,
    NetworkRecord,
    Percentiles,
    TrafficBytes,
    TrainingRecord,
)

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "best.yaml"
# Large enough that what else goes over the wire in a step is little beside.
MODEL = "--rows 8000 --batch-size 1024 --embedding-dim 128 --min-count 1"
LACKS = " and ".join(hosts.missing())
emulated = pytest.mark.skipif(bool(LACKS), reason=f"needs {LACKS}")


def record(name, sent, counted=None, p50=1.0, rate="none"):
    """Return a record of two hosts. Args: counted: bytes of dense gradients by our count."""
    host = {kind: TrafficBytes(wire_nbytes=0.0) for kind in TRAFFIC_KINDS}
    host["dense"] = TrafficBytes(wire_nbytes=counted or 0.0)
    return NetworkRecord(
        configuration=name,
        config="one",
        setup={"plan": "table_wise", "batch_size": 8, "dim": 8},
        environment=Environment(
            commit="abc1234", versions={"torch": "2"}, hardware={"num_cpus": 2, "cpu": "x86_64"}
        ),
        num_hosts=2,
        rate=rate,
        num_steps=2,
        step_s=Percentiles(p20=p50, p50=p50, p80=p50),
        sent_nbytes=(sent, sent),
        sent_packets=(1.0, 1.0),
        traffic=None if counted is None else (host, host),
        metrics={"ne": 0.9},
    )


def test_counts_that_disagree_are_told():
    headers = 66.0  # of its one packet
    assert tables.apart(record("a", 1000.0 + headers, 990.0)) == pytest.approx(0.01)
    assert tables.apart(record("a", 1000.0 + headers, 1020.0)) > tables.MOST_APART


def test_tables_compare_with_stock():
    measured = [record("stock", 4e6, p50=2.0), record("best", 1e6, 1e6, p50=0.5)]
    line = next(r for r in tables.format_table(measured).splitlines() if r.startswith("| best"))
    assert "| 4.00 | 1000 | 4.0 | 0, 0, 1000, 0 |" in line
    said = tables.verdict([measured])
    assert "best on 2 hosts" in said
    assert "4.0x fewer bytes and 4.0x the speed of stock" in said


def test_only_the_same_measurement_counts_as_done(tmp_path):
    config = tmp_path / "a.yaml"
    config.write_text("one")
    done = [record("a", 1.0), replace(record("stock", 1.0), config=None)]
    names, setup = [str(config), "stock"], dict(done[0].setup)
    asked = argparse.Namespace(delay=None, steps=2, ranks_per_host=1)
    of_network = bench.of_network(done, 2, "none", asked, [setup])
    assert bench.missing_configs(of_network, names, [setup]) == []
    longer = argparse.Namespace(delay=None, steps=3, ranks_per_host=1)
    assert bench.of_network(done, 2, "none", longer, [setup]) == []
    assert bench.of_network(done, 2, "none", asked, [setup | {"batch_size": 9}]) == []
    # With --plans each config has a record of each plan.
    plans = [setup, setup | {"plan": "row_wise"}]
    assert bench.of_network(done, 2, "none", asked, plans) == of_network
    assert bench.missing_configs(of_network, names, plans) == names
    config.write_text("two")
    assert bench.missing_configs(done, names, [setup]) == [str(config)]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--tensorboard", "tensorboard"),
        ("--dump-rows rows.pt", "dump_rows"),
        ("--eval-codec off", "eval_codec"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words, name, monkeypatch, capfd):
    monkeypatch.setattr(bench, "missing", list)
    monkeypatch.setattr(subprocess, "run", run_command)
    monkeypatch.setattr(sys, "argv", ["net", "--rate", "none", *words.split()])
    assert bench.main() == 2
    assert f"{name}: an option that bench-net does not have" in capfd.readouterr().err


def test_bytes_that_could_not_be_told_are_refused_before_the_first_network(tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("dense: {codec: {codec: cast, dtype: bf16}}")  # algorithm: auto
    asked = argparse.Namespace(configs=["stock", str(config)], hosts=[2, 3], ranks_per_host=1)
    setup = {"plan": "table_wise"}
    bench.check_counts(asked, [setup])
    asked.ranks_per_host = 2
    with pytest.raises(ValueError, match=r"mine.yaml: dense: algorithm: auto"):
        bench.check_counts(asked, [setup])
    config.write_text("dense: {codec: {codec: cast, dtype: bf16}, algorithm: recursive_doubling}")
    with pytest.raises(ValueError, match=r"mine.yaml: .* 3 hosts of 2 ranks"):
        bench.check_counts(asked, [setup])
    config.write_text("ids: {codec: packed}")
    bench.check_counts(asked, [setup])
    with pytest.raises(ValueError, match=r"mine.yaml: ranks_per_node: 4"):
        bench.check_counts(asked, [setup, {"plan": "two_level", "ranks_per_node": 4}])


@pytest.mark.parametrize("ranks_per_host", ["0", "3"])
def test_hosts_that_the_ranks_do_not_fill_are_refused(ranks_per_host, tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "criteo" / "in_turn.py")]
    command += ["--configs", "stock", "--out", str(tmp_path / "net.jsonl")]
    command += ["--ranks-per-host", ranks_per_host]
    env = os.environ | {"WORLD_SIZE": "4", "RANK": "0"}
    done = run_command(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert f"ranks_per_host {ranks_per_host}: 4 ranks do not fill such hosts" in done.stderr


def test_the_command_refuses_them_before_it_builds_a_network(tmp_path, monkeypatch, capsys):
    config = tmp_path / "mine.yaml"
    config.write_text("dense: {codec: {codec: cast, dtype: bf16}}")
    monkeypatch.setattr(bench, "missing", list)
    monkeypatch.setattr(subprocess, "run", run_command)
    words = ["--hosts", "2", "--ranks-per-host", "2", "--configs", str(config)]
    monkeypatch.setattr(sys, "argv", ["net", *words, "--out", str(tmp_path / "net.jsonl")])
    with pytest.raises(SystemExit):
        bench.main()
    said = capsys.readouterr().err
    assert "mine.yaml: dense: algorithm: auto: which one was taken is not recorded" in said
    assert "[1/" not in said


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config", {"config": "another"}),
        ("batch_size", {"setup": {"plan": "table_wise", "batch_size": 9, "dim": 8}}),
        ("num_steps", {"num_steps": 3}),
        ("delay", {"delay": "1ms"}),
    ],
)
def test_a_line_of_the_readme_is_of_one_measurement(name, change):
    """A change between the records of two rates is named."""
    slow, fast = (record("best", 1e6, rate=rate) for rate in ("100mbit", "1gbit"))
    assert "| `best` |" in section.table([slow, fast])
    with pytest.raises(ValueError, match=f"best at 1gbit: another {name} than at 100mbit"):
        section.table([slow, replace(fast, **change)])


def test_hosts_of_several_ranks_have_a_table_of_their_own():
    one = record("best", 1e6)
    two = replace(one, ranks_per_host=2, sent_nbytes=(3e6, 3e6))
    made = section.section([one, two])
    assert made.index("| 2 hosts, table_wise |") < made.index("1.00 MB")
    assert made.index("| 2 hosts of 2 ranks, table_wise |") < made.index("3.00 MB")
    with pytest.raises(ValueError, match="records of 2 hosts and of 2 hosts of 2 ranks"):
        section.table([one, two])


def test_plans_of_several_numbers_of_hosts_have_no_table():
    several = [record("best", 1e6), replace(record("best", 1e6), num_hosts=4)]
    with pytest.raises(ValueError, match=r"records of \[2, 4\] hosts"):
        plans_section.section(several)


def test_a_rate_that_one_configuration_lacks_is_an_empty_cell():
    measured = [record("stock", 4e6, rate=rate) for rate in ("100mbit", "1gbit")]
    table = section.table([*measured, record("best", 1e6, rate="1gbit")])
    assert "| `best` | 1.00 MB, 4.0x less |  | 1000 ms, 1.0x | 0.9000 |" in table


def test_a_file_that_is_no_record_of_a_network_is_told(tmp_path, monkeypatch, capsys):
    out = tmp_path / "net.jsonl"
    monkeypatch.setattr(bench, "missing", list)
    monkeypatch.setattr(subprocess, "run", run_command)
    monkeypatch.setattr(sys, "argv", ["net", "--configs", "stock", "--out", str(out)])
    records.append(out, TrainingRecord(configuration="a", steps=1))
    with pytest.raises(SystemExit):
        bench.main()
    assert "net.jsonl, line 1: a record of kind training, not network" in capsys.readouterr().err
    out.write_text(out.read_text() + '{"hosts": 2, "ra')
    with pytest.raises(SystemExit):
        bench.main()
    assert "net.jsonl, line 2: " in capsys.readouterr().err


@emulated
def test_a_link_is_as_slow_as_told(tmp_path):
    code = (
        "import os, socket, sys, time\n"
        "rank = int(os.environ['RANK'])\n"
        "if rank == 0:\n"
        "    server = socket.create_server(('0.0.0.0', 7000))\n"
        "    peer, _ = server.accept()\n"
        "    peer.sendall(bytes(4_000_000))\n"
        "else:\n"
        "    for _ in range(100):\n"
        "        try:\n"
        "            s = socket.create_connection((os.environ['MASTER_ADDR'], 7000), timeout=30)\n"
        "            break\n"
        "        except OSError:\n"
        "            time.sleep(.05)\n"
        "    begin, n = time.perf_counter(), 0\n"
        "    while n < 4_000_000:\n"
        "        n += len(s.recv(1 << 16))\n"
        "    open(sys.argv[1], 'w').write(str(time.perf_counter() - begin))\n"
    )
    with hosts.Hosts(2, "40mbit") as network:
        network.run([sys.executable, "-c", code, str(tmp_path / "s")], timeout_s=60)
    seconds = float((tmp_path / "s").read_text())
    assert 0.5 < seconds < 2.0  # .8 s, less what the bucket lets through at once
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert network._tag not in names.stdout


def test_plan_files_of_one_sharding_are_told_apart():
    one, other = (f"Plan(sharding='planned', cluster={n})" for n in (1, 2))
    plans = ("row_wise", one, other, one)
    records = [replace(record("a", 1.0), setup={"plan": plan}) for plan in plans]
    names = ["a, row_wise", "a, planned 1", "a, planned 2", "a, planned 1"]
    assert tables.names_of(records) == names
    assert tables.names_of(records[1::2]) == ["a", "a"]
    assert tables.names_of(records[:2]) == ["a, row_wise", "a, planned"]


def test_overlapping_spans_cover_their_union():
    assert measured_steps.covered([]) == 0
    assert measured_steps.covered([(5, 7), (0, 3), (1, 2), (2, 4), (7, 8)]) == 4 + 3


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


def test_ranks_per_node_is_what_torchrec_calls_a_node(tmp_path, monkeypatch):
    for name in ("init_process_group", "barrier", "destroy_process_group"):
        monkeypatch.setattr(dist, name, lambda *_, **__: None)
    for name, value in (("RANK", 1), ("WORLD_SIZE", 4), ("LOCAL_WORLD_SIZE", 1)):
        monkeypatch.setenv(name, str(value))
    words = "--configs stock --steps 1 --plan two_level --ranks-per-node 2 --out"
    monkeypatch.setattr(sys, "argv", ["in_turn.py", *words.split(), str(tmp_path / "net.jsonl")])
    node_sizes = []

    def measure(*_):
        node_sizes.append(get_local_size(4))
        return []

    measured_command.run("", in_turn.TRAIN_OPTIONS, measure)
    assert node_sizes == [2]


@emulated
@pytest.mark.dist
@pytest.mark.slow
def test_measures_and_goes_on(tmp_path):
    out = tmp_path / "net.jsonl"
    command = [sys.executable, "-m", "examples.bench.net", "--hosts", "2", "--rate", "none"]
    command += ["--steps", "2", "--out", out, *MODEL.split(), "--timeout", "100", "--configs"]
    command += ["stock", "stock_fp16", "stock_powersgd", CONFIG]
    for _ in range(2):  # the second time nothing is left to be measured
        done = run_command(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr
    stock, half, low_rank, best = measured = records.read(out)
    names = ["stock", "stock_fp16", "stock_powersgd", "best"]
    assert [record.configuration for record in measured] == names
    dense_nbytes = best.traffic[0]["dense"].raw_nbytes
    assert min(stock.sent_nbytes) - max(low_rank.sent_nbytes) > 0.8 * dense_nbytes
    assert max(best.sent_nbytes) < min(half.sent_nbytes) < min(stock.sent_nbytes)
    assert min(best.breakdown_s[part] for part in ("encode", "lookup", "dense", "optimizer")) > 0
    assert all(record.breakdown_s["all-to-all"] > 0 for record in measured)
    assert "| ms | lookup |" in done.stdout
    assert best.losses[0] == pytest.approx(stock.losses[0], rel=1e-3)
    assert "best on 2 hosts at none" in done.stdout
