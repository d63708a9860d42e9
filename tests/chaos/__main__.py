"""make chaos: faults in a training on emulated hosts, and a long training that is watched.

Examples:
    python -m tests.chaos faults --netlab PATH                all cases, about 15 minutes
    python -m tests.chaos faults --netlab PATH --hosts 2 --faults kill stop --phases training
    python -m tests.chaos table runs/chaos/faults.jsonl       the outcomes as a table
    python -m tests.chaos soak                                10,000 steps on 2 ranks
    python -m tests.chaos soak --verdict runs/chaos/soak.jsonl

`faults` needs root, Linux with iproute2, and a netlab command, which tests/chaos/network.py
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

from tests.chaos import soak
from tests.chaos.cases import FAULTS, PHASES, all_cases
from tests.chaos.run import Forks, Options, run_case
from tests.chaos.table import is_good, one_line, table


def main() -> int:
    """Run the command; the exit status is 0 where all is as it should be."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_faults(commands.add_parser("faults", help="inject faults into a training"))
    _add_soak(commands.add_parser("soak", help="watch the resources of a long training"))
    shown = commands.add_parser("table", help="print outcomes as a table of Markdown")
    shown.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "faults":
        return run_faults(options)
    if options.command == "table":
        print(table([outcome for file in options.files for outcome in _outcomes(file)]))
        return 0
    if options.verdict is not None:
        return soak.report(options.verdict)
    return soak.run(
        options.config,
        steps=options.steps,
        num_ranks=options.ranks,
        out=options.out,
        every_s=options.every,
    )


def _add_faults(parser: argparse.ArgumentParser) -> None:
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


def _add_soak(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", default="configs/best.yaml", help="default configs/best.yaml")
    add("--steps", type=int, default=10_000, help="default 10,000")
    add("--ranks", type=int, default=2, help="default 2")
    add("--every", type=float, default=10.0, help="seconds between samples; default 10")
    add("--out", type=Path, default=Path("runs/chaos"), help="folder; default runs/chaos")
    add("--verdict", type=Path, metavar="FILE", help="only judge a file of samples")


def run_faults(options: argparse.Namespace) -> int:
    """Run the cases that are not in the file yet; print a line each, and a sum at last."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    outcomes = {outcome["name"]: outcome for outcome in _outcomes(options.out)}
    forks = Forks()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.keep or Path(scratch)).absolute()
        given = Options(options.config, options.timeout, options.netlab, options.rate, folder)
        references: dict[int, dict[str, object]] = {}
        for case in all_cases(options.hosts, options.faults, options.phases):
            if case.name in outcomes and case.fault != "none":
                continue
            outcome, record = run_case(case, given, forks, references.get(case.hosts))
            if case.fault == "none":
                if record is None:
                    raise SystemExit(f"chaos: the training without a fault failed: {outcome}")
                references[case.hosts] = record
            elif case.hosts not in references:
                raise SystemExit("chaos: no training without a fault to compare with")
            outcomes[case.name] = json.loads(json.dumps(asdict(outcome)))
            with options.out.open("a") as lines:
                print(json.dumps(asdict(outcome)), file=lines)
            print(one_line(outcomes[case.name]), flush=True)
    forks.close()
    bad = [outcome for outcome in outcomes.values() if not is_good(outcome)]
    print(f"chaos: {len(outcomes)} cases, {len(bad)} not as they should be; {options.out}")
    return int(bool(bad))


def _outcomes(file: Path) -> list[dict[str, object]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]


if __name__ == "__main__":
    sys.exit(main())
