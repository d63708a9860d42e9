"""bench-net: real hosts on a network of a given speed, and what is said of what they measured."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

NET = Path(__file__).resolve().parents[2] / "examples" / "bench" / "net"
sys.path.insert(0, str(NET))

import hosts  # noqa: E402
import net_section  # noqa: E402
import run  # noqa: E402
import tables  # noqa: E402

CONFIG = NET.parents[2] / "configs" / "best.yaml"
# Large enough that what else goes over the wire in a step is little beside.
MODEL = "--rows 8000 --batch-size 256 --embedding-dim 64 --min-count 1"
LACKS = " and ".join(hosts.missing())
emulated = pytest.mark.skipif(bool(LACKS), reason=f"needs {LACKS}")


def record(way, sent, counted=None, p50=1.0):
    per_kind = {"wire_nbytes": [0.0, 0.0], "raw_nbytes": [0.0, 0.0]}
    kinds = {kind: dict(per_kind) for parts in tables.KINDS.values() for kind in parts}
    if counted is not None:
        kinds["dense"] = {"wire_nbytes": [counted, counted]}
    return {
        "hosts": 2, "rate": "none", "delay": None, "way": way, "sent_nbytes": [sent, sent],
        "step_s": {"p20": p50, "p50": p50, "p80": p50}, "metrics": {"ne": 0.9},
        "counted": None if counted is None else kinds,
    }  # fmt: skip


def test_counts_that_disagree_are_told():
    assert tables.apart(record("a", 1000.0, 990.0)) == pytest.approx(0.01)
    assert tables.apart(record("a", 1000.0, 1050.0)) > tables.MOST_APART


def test_tables_compare_with_stock():
    records = [record("stock", 4e6, p50=2.0), record("best", 1e6, 1e6, p50=0.5)]
    line = next(r for r in tables.format_table(records).splitlines() if r.startswith("| best"))
    assert "| 4.00 | 1000 | 4.0 | 0, 0, 1000, 0 |" in line
    said = tables.verdict([records])
    assert "best on 2 hosts" in said
    assert "4.0x fewer bytes and 4.0x the speed of stock" in said


def test_only_the_same_measurement_counts_as_done(tmp_path):
    config = tmp_path / "a.yaml"
    config.write_text("one")
    label = {"hosts": 2, "model": ["--rows", "9"], "num_steps": 2}
    records = [label | {"way": "a", "config": "one"}, label | {"way": "stock", "config": None}]
    names = [str(config), "stock"]
    assert run.missing_configs(run.of_network(records, label), names) == []
    assert run.of_network(records, label | {"num_steps": 3}) == []
    assert run.of_network(records, label | {"model": ["--rows", "8"]}) == []
    config.write_text("two")
    assert run.missing_configs(records, names) == [str(config)]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--tensorboard", "tensorboard"),
        ("--dump-rows rows.pt", "dump_rows"),
        ("--eval-codec off", "eval_codec"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words, name, monkeypatch, capsys):
    monkeypatch.setattr(run, "missing", list)
    monkeypatch.setattr(sys, "argv", ["run.py", "--rate", "none", *words.split()])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == 2
    assert f"{name}: an option that bench-net does not have" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"config": "another"}, {"commit": "def5678"}, {"options": {"batch_size": 9}},
        {"num_steps": 3}, {"delay": "1ms"}, {"model": ["--rows", "9"]},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_line_of_the_readme_is_of_one_measurement(change):
    """Of two rates; a change in one of them is named."""
    same = {"commit": "abc1234", "options": {"batch_size": 8}, "num_steps": 2, "config": "one"}
    slow, fast = (record("best", 1e6) | same | {"rate": r} for r in ("100mbit", "1gbit"))
    assert "| `best` |" in net_section.table([slow, fast])
    (name,) = change
    with pytest.raises(ValueError, match=f"best at 1gbit: another {name} than at 100mbit"):
        net_section.table([slow, fast | change])


def test_a_line_that_was_cut_short_is_told(tmp_path, monkeypatch, capsys):
    out = tmp_path / "net.jsonl"
    out.write_text(json.dumps(record("stock", 1.0)) + '\n{"hosts": 2, "ra')
    monkeypatch.setattr(run, "missing", list)
    monkeypatch.setattr(sys, "argv", ["run.py", "--configs", "stock", "--out", str(out)])
    with pytest.raises(SystemExit):
        run.main()
    said = capsys.readouterr().err
    assert "net.jsonl, line 2: " in said
    assert "take it away to go on" in said


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


@emulated
def test_a_host_that_fails_ends_the_others():
    code = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(600)"
    begin = time.monotonic()
    with (
        pytest.raises(RuntimeError, match="host 1 of 2 at none failed"),
        hosts.Hosts(2, "none") as network,
    ):
        network.run([sys.executable, "-c", code], timeout_s=120)
    assert time.monotonic() - begin < 60


@emulated
@pytest.mark.dist
@pytest.mark.slow
def test_measures_and_goes_on(tmp_path):
    out = tmp_path / "net.jsonl"
    command = [sys.executable, NET / "run.py", "--hosts", "2", "--rate", "none", "--steps", "2"]
    command += ["--out", out, *MODEL.split(), "--timeout", "100", "--configs"]
    found = {}
    for configs in (["stock"], ["stock", "stock_fp16", CONFIG]):
        done = subprocess.run(
            [*command, *configs], capture_output=True, text=True, timeout=250, check=False
        )
        assert done.returncode == 0, done.stderr
        found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [r["way"] for r in found] == ["stock", "stock_fp16", "best"]
    stock, half, best = found
    assert max(best["sent_nbytes"]) < min(half["sent_nbytes"]) < min(stock["sent_nbytes"])
    assert min(best["breakdown_s"][part] for part in ("encode", "lookup", "dense", "optimizer")) > 0
    assert "| ms | lookup |" in done.stdout
    assert best["losses"][0] == pytest.approx(stock["losses"][0], rel=1e-3)
    assert "best on 2 hosts at none" in done.stdout
