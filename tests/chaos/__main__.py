"""make chaos: faults in a training on emulated hosts.

Examples:
    python -m tests.chaos --netlab PATH                all cases, about half an hour
    python -m tests.chaos --netlab PATH --hosts 2 --faults kill stop --phases training
    python -m tests.chaos long --help              hours of training under faults of all kinds

This needs root, Linux with iproute2 and nsenter, and a netlab command, which tests/chaos/network.py
describes; for the fault "loss" that command may need nftables. Cases that are in --out already are
not run again. What a case is and what happens in it: tests/chaos/cases.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.chaos import long
from tests.chaos.cases import FAULTS, PHASES, all_cases
from tests.chaos.run import Options, run_case
from tests.chaos.verdict import one_line, problems


def main() -> int:
    """Run the cases that are not in the file yet; print a line each, and a sum at last.

    The exit status is 0 where all is as it should be.
    """
    if sys.argv[1:2] == ["long"]:
        return long.main(sys.argv[2:])
    options = _parser().parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    outcomes = {outcome["name"]: outcome for outcome in map(json.loads, lines)}
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.keep or Path(scratch)).absolute()
        given = Options(options.config, options.timeout, options.netlab, options.rate, folder)
        references: dict[int, dict[str, object]] = {}
        for case in all_cases(options.hosts, options.faults, options.phases):
            if case.name in outcomes and case.fault != "none":
                continue
            outcome, record = run_case(case, given, references.get(case.hosts))
            if case.fault == "none":
                if record is None:
                    raise SystemExit(f"chaos: the training without a fault failed: {outcome}")
                references[case.hosts] = record
            outcomes[case.name] = json.loads(json.dumps(asdict(outcome)))
            with options.out.open("a") as file:
                print(json.dumps(asdict(outcome)), file=file)
            print(one_line(outcomes[case.name]), flush=True)
    bad = [outcome for outcome in outcomes.values() if problems(outcome)]
    print(f"chaos: {len(outcomes)} cases, {len(bad)} not as they should be; {options.out}")
    return int(bool(bad))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--netlab", type=Path, required=True, help="the command that emulates hosts")
    add("--config", default="configs/best.yaml", help="default configs/best.yaml")
    add("--hosts", type=int, nargs="+", default=[2, 4], help="default 2 4")
    faults = [name for name in FAULTS if name != "none"]
    add("--faults", nargs="+", choices=faults, default=faults, help="default all")
    add("--phases", nargs="+", choices=PHASES, default=list(PHASES), help="default all")
    add("--timeout", type=float, default=10.0, help="of collectives, in seconds; default 10")
    add("--rate", default="1gbit", help="of the hosts' links; default 1gbit")
    add("--out", type=Path, default=Path("runs/chaos/faults.jsonl"), help="file of outcomes")
    add("--keep", type=Path, help="folder for logs and checkpoints (default: thrown away)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
