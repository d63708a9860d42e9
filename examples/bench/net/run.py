"""What the codecs save on networks of several speeds, beside plain TorchRec: bytes, time, quality.

  python run.py                                            2 and 4 hosts; 100 Mbit/s to no limit
  python run.py --hosts 2 --rate 100mbit,1gbit --delay 1ms
  python run.py --data train.tsv --configs stock ../../../configs/best.yaml --out mine.jsonl

Hosts are network namespaces of this machine whose links are as slow as told (hosts.py; needs root
and iproute2). Each host trains all configs in turn, step by step (host.py); options that are not
listed here are those of examples/criteo/train.py, but for --tensorboard, --dump-rows, --eval-codec,
--epochs and checkpoints. One JSON object a network and config in --out; networks that are there
already are not run again, so the same command goes on after Ctrl-C.

The last column holds the kernel's count of the bytes against ours. If they are more than 3 % apart
for any config the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from hosts import Hosts, missing
from tables import MOST_APART, apart, format_breakdown, format_table, verdict

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from json_lines import read  # noqa: E402

CONFIGS = HERE.parents[2] / "configs"
WAYS = ["stock", "stock_fp16", "stock_int8"] + [
    str(CONFIGS / f"{name}.yaml")
    for name in ("int8", "int4", "unique_int4", "dual_level", "dct", "best")
]
# The model whose traffic the README is about; each may be overridden.
MODEL = {"--batch-size": "2048", "--embedding-dim": "64", "--min-count": "1", "--rows": "131072"}
RATES = ["100mbit", "1gbit", "10gbit", "none"]  # none: no limit
INTERRUPTED = 130


def main() -> int:
    """Run what is missing in --out, and show all of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--hosts", type=_numbers, default=[2, 4], help="default 2,4")
    add("--rate", type=_words, default=RATES, help=f"as tc writes it (default {','.join(RATES)})")
    add("--delay", default=None, help="one way, such as 1ms")
    add("--configs", nargs="+", default=WAYS, help="as train.py's --config (default: nine)")
    add("--steps", type=int, default=25, help="timed steps of each config (default 25)")
    add("--out", type=Path, default=Path("runs/net.jsonl"), help="default runs/net.jsonl")
    add("--network-timeout", type=float, default=3600.0, metavar="SECONDS", help="default 3600")
    arguments, rest = parser.parse_known_args()
    lacks = missing()
    if lacks:
        print(
            f"bench-net cannot emulate hosts here: it needs {' and '.join(lacks)}", file=sys.stderr
        )
        return 1
    from host import parsed  # here, as it takes seconds

    try:
        parsed(arguments.configs, rest)
        read(arguments.out)
    except ValueError as error:
        parser.error(str(error))
    model = [w for name, value in MODEL.items() if name not in rest for w in (name, value)]
    networks = [(hosts, rate) for hosts in arguments.hosts for rate in arguments.rate]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    labels = [
        {
            "hosts": hosts,
            "rate": rate,
            "delay": arguments.delay,
            "model": [Path(word).name for word in (*model, *rest)],  # no folder of this machine
            "num_steps": arguments.steps,
        }
        for hosts, rate in networks
    ]
    for number, label in enumerate(labels, start=1):
        hosts, rate = label["hosts"], label["rate"]
        configs = missing_configs(of_network(read(arguments.out), label), arguments.configs)
        print(f"[{number}/{len(networks)}] {hosts} hosts, {rate}", file=sys.stderr, flush=True)
        if configs:
            try:
                measure(arguments, label, [*model, *rest], configs)
            except KeyboardInterrupt:
                print(
                    f"interrupted; the same command goes on with {arguments.out}", file=sys.stderr
                )
                return INTERRUPTED
    records = read(arguments.out)
    shown = [of_network(records, label) for label in labels]
    print("\n\n".join(f"{format_table(n)}\n\n{format_breakdown(n)}" for n in shown))
    print(f"{verdict(shown)}; {time.monotonic() - started:.0f} s; {arguments.out}")
    return int(any(apart(r) > MOST_APART for network in shown for r in network if r["counted"]))


def measure(
    arguments: argparse.Namespace, label: dict[str, Any], rest: list[str], configs: list[str]
) -> None:
    """One network; the hosts append their records to --out."""
    command = [
        sys.executable, str(HERE / "host.py"), "--configs", *configs, "--steps",
        str(arguments.steps), "--label", json.dumps(label), "--out", str(arguments.out), *rest,
    ]  # fmt: skip
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would talk over the progress
    with Hosts(label["hosts"], label["rate"], label["delay"]) as hosts:
        hosts.run(command, timeout_s=arguments.network_timeout)


def of_network(records: list[dict[str, Any]], label: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of one network, of the same model, options and number of steps."""
    return [r for r in records if all(r.get(name) == value for name, value in label.items())]


def missing_configs(records: list[dict[str, Any]], configs: list[str]) -> list[str]:
    """Those without a record, or whose file said something else then."""
    done = {(r["way"], r["config"]) for r in records}
    now = {c: Path(c).read_text() if Path(c).is_file() else None for c in configs}
    return [c for c in configs if (Path(c).stem, now[c]) not in done]


def _words(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
