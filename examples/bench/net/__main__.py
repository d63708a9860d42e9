"""What the codecs save on networks of several speeds, beside plain TorchRec: bytes, time, quality.

  python -m examples.bench.net                             2 and 4 hosts; 100 Mbit/s to no limit
  python -m examples.bench.net --hosts 2 --rate 100mbit,1gbit --delay 1ms
  python -m examples.bench.net --hosts 2 --rate 25mbit,100mbit --plan row_wise
  python -m examples.bench.net --data train.tsv --configs stock configs/best.yaml --out mine.jsonl
  python -m examples.bench.net --hosts 2 --model dcn --scale 0.5 --multi-hot --batch-size 512
  python -m examples.bench.net --hosts 4 --ranks-per-node 2 --plans table_wise two_level planned
  python -m examples.bench.net --hosts 2 --ranks-per-host 2 --configs configs/by_node.yaml

Hosts are network namespaces of this machine whose links are as slow as told (hosts.py; needs root
and iproute2). Each host trains all configs in turn, step by step (criteo/studies/in_turn.py); with
--plans, each config with each plan.
Options that are not listed here are those of the example's train.py, but for --tensorboard,
--dump-rows, --eval-codec, --epochs and checkpoints. One record a network, config and plan in --out;
networks that are there already are not run again, so the same command goes on after Ctrl-C.

Shown are the tables of the README, then one for each network with all else that was measured. If
the kernel's count of the bytes, without headers of packets, and ours are more than 1 % apart for
any config the exit status is 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.bench import command, tables
from examples.bench.command import positive
from examples.bench.net.hosts import Hosts, missing
from trec_qcomm.config import config_from_dict, parse_yaml
from trec_qcomm.lab.records import NetworkRecord
from trec_qcomm.lab.simulate.between_hosts import host_shares

ROOT = Path(__file__).resolve().parents[3]
TRAINING = ROOT / "examples" / "criteo" / "studies" / "in_turn.py"
CONFIGURATIONS = ["stock", "stock_fp16", "stock_int8", "stock_powersgd"] + [
    str(ROOT / "configs" / f"{name}.yaml") for name in ("int8", "int4", "unique_int4", "best")
]
# The model whose traffic the README is about; each option may be given again.
CRITEO = {"--batch-size": "2048", "--embedding-dim": "64", "--min-count": "1", "--rows": "131072"}
RATES = ["100mbit", "1gbit", "10gbit", "none"]  # none: no limit


def main() -> int:
    """Run what is missing in --out, and show all of it."""
    parser = _parser()
    arguments, rest = parser.parse_known_args()
    lacks = " and ".join(missing())
    if lacks:
        print(f"bench-net cannot emulate hosts here: it needs {lacks}", file=sys.stderr)
        return 1
    given = {*rest, *(("--embedding-dim",) if "--scale" in rest else ())}
    rest = [w for name, v in CRITEO.items() if name not in given for w in (name, v)] + rest
    words = [*_command(arguments, arguments.configs, rest), "--check"]
    per_host = arguments.ranks_per_host
    ranks = {"WORLD_SIZE": str(arguments.hosts[0] * per_host), "LOCAL_WORLD_SIZE": str(per_host)}
    checked = subprocess.run(words, env=os.environ | ranks, stdout=subprocess.PIPE, check=False)
    if checked.returncode:
        return checked.returncode
    setups, started = json.loads(checked.stdout), time.monotonic()
    networks = [(num_hosts, rate) for num_hosts in arguments.hosts for rate in arguments.rate]
    try:
        check_counts(arguments, setups)
        for number, (num_hosts, rate) in enumerate(networks, start=1):
            print(f"[{number}/{len(networks)}] {num_hosts} hosts, {rate}", file=sys.stderr)
            measured = network_records(num_hosts, rate, arguments, setups)
            configs = missing_configs(measured, arguments.configs, setups)
            if configs:
                _measure(arguments, num_hosts, rate, configs, rest)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {arguments.out}", file=sys.stderr)
        return command.INTERRUPTED
    shown = [network_records(*network, arguments, setups) for network in networks]
    try:
        print(tables.networks([record for network in shown for record in network]))
        print("\n\n".join(map(tables.network_details, shown)))
        differ = any(
            tables.apart(r) > tables.MOST_APART for network in shown for r in network if r.traffic
        )
    except ValueError as error:  # of what only the records tell, such as the choice of a planner
        print(f"{error}; the records are in {arguments.out}", file=sys.stderr)
        return 1
    print(f"{tables.verdict(shown)}; {time.monotonic() - started:.0f} s; {arguments.out}")
    return int(differ)


def check_counts(arguments: argparse.Namespace, setups: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError, naming the config, where it would not be known what leaves a host."""
    files = [path for path in map(Path, arguments.configs) if path.is_file()]
    for path, num_hosts, setup in itertools.product(files, arguments.hosts, setups):
        config = config_from_dict(parse_yaml(path.read_text(), name=str(path)), source=str(path))
        try:
            host_shares(config, setup, num_hosts=num_hosts, ranks_per_host=arguments.ranks_per_host)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def network_records(
    num_hosts: int, rate: str, arguments: argparse.Namespace, setups: Sequence[Mapping[str, Any]]
) -> list[NetworkRecord]:
    """Return the last record in --out of each config on a network, of these setups and steps."""
    asked = (num_hosts, arguments.ranks_per_host, rate, arguments.delay, arguments.steps)
    last = {}
    for r in command.read_so_far(arguments.out, NetworkRecord):
        theirs = (r.num_hosts, r.ranks_per_host, r.rate, r.delay, r.num_steps)
        if theirs == asked and dict(r.setup) in setups:
            last[r.configuration, r.setup_key] = r
    return list(last.values())


def missing_configs(
    measured: Sequence[NetworkRecord], configs: Sequence[str], setups: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return the configs without a record of each setup, or whose file said something else then."""
    done = [(r.configuration, r.config, dict(r.setup)) for r in measured]
    now = {c: Path(c).read_text() if Path(c).is_file() else None for c in configs}
    return [c for c in configs if any((Path(c).stem, now[c], s) not in done for s in setups)]


def _measure(
    arguments: argparse.Namespace,
    num_hosts: int,
    rate: str,
    configs: Sequence[str],
    rest: Sequence[str],
) -> None:
    """Train on one network; host 0 appends the records to --out."""
    words = [*_command(arguments, configs, rest), "--rate", rate]
    words += [] if arguments.delay is None else ["--delay", arguments.delay]
    words += ["--ranks-per-host", str(arguments.ranks_per_host)]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would talk over the progress
    with Hosts(num_hosts, rate, arguments.delay, ranks=arguments.ranks_per_host) as hosts:
        hosts.run(words, timeout_s=arguments.network_timeout)


def _command(
    arguments: argparse.Namespace, configs: Sequence[str], rest: Sequence[str]
) -> list[str]:
    """Return the command of one host; `rest` are options of train.py."""
    ours = ["--steps", str(arguments.steps), "--out", str(arguments.out)]
    return [sys.executable, str(TRAINING), "--configs", *configs, *ours, *rest]


def _parser() -> argparse.ArgumentParser:
    parser = command.build_parser(__doc__, out="runs/net.jsonl")
    add = parser.add_argument
    add("--hosts", type=_numbers, default=[2, 4], help="default 2,4")
    add("--ranks-per-host", type=positive, default=1, help="ranks without a link (default 1)")
    add("--rate", type=_words, default=RATES, help=f"as tc writes it (default {','.join(RATES)})")
    add("--delay", default=None, help="one way, such as 1ms")
    add("--configs", nargs="+", default=CONFIGURATIONS, help="as train.py's --config (ten)")
    add("--steps", type=int, default=25, help="timed steps of each config (default 25)")
    add("--network-timeout", type=float, default=3600.0, metavar="SECONDS", help="default 3600")
    return parser


def _words(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
