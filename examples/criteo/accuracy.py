"""Whether a codec costs accuracy: many paired trainings by emulation, and their statistics.

  python accuracy.py --configs ../../configs/int8.yaml ../../configs/int4.yaml --seeds 50 --jobs 2
  python accuracy.py --configs my.yaml --seeds 10 --modes eval-only --data train.txt --min-count 1

Each config is trained from each of the seeds 0, 1, ... in one process and one thread that plays the
ranks (trec_qcomm.comm.emulate), on the same rows in the same order as train.py does with a
table-wise plan. Always run beside them: `fp32`, what all is compared to, and `null`, fp32 with its
initial embeddings off by a relative 1e-6: the noise floor of the comparison.

Modes: `training` trains with the codec and scores with it on and off; `eval-only` switches the
codec on for the fp32-trained model of the same seed.

A run is one line of JSON in --out/runs.jsonl. What is there is not run again: after Ctrl-C, or for
more seeds or configs, give the command again. The options of data and model are those of train.py.
The default rows are synthetic, others for every seed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from study.processes import run_all
from study.runs import MODES, OPTIONS, Study, read_records
from study.show import format_table, verdict, write_plot
from study.training import Codecs
from train import INTERRUPTED, STOCK, build_parser, check_options

from trec_qcomm.config import config_to_dict, load_config
from trec_qcomm.report.statistics import BASELINE, NULL

SYNTHETIC = "synthetic"


def main() -> int:
    """Run what is missing and show all; the exit status is 130 after Ctrl-C."""
    parser = _parser()
    arguments, rest = parser.parse_known_args()
    try:
        study = make_study(arguments, rest)
        path: Path = arguments.out / "runs.jsonl"
        done = read_records(path, study)
    except ValueError as error:
        parser.error(str(error))
    missing = study.missing(done, range(arguments.seeds))
    try:
        run_all(study, missing, path, jobs=arguments.jobs)
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {path}", file=sys.stderr)
        return INTERRUPTED
    records = [r for r in read_records(path, study) if r["seed"] < arguments.seeds]
    table = format_table(records, list(study.configs))
    (arguments.out / "table.md").write_text(table + "\n")
    print(table)
    if not write_plot(records, list(study.configs), arguments.out):
        print("no plot: matplotlib is not installed")
    print(f"{verdict(records, list(study.configs))}; {arguments.seeds} seeds; {path}")
    return 0


def make_study(arguments: argparse.Namespace, rest: Sequence[str]) -> Study:
    """Check everything that can be wrong. Raises ValueError naming the option."""
    for name in ("seeds", "jobs"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"{name} {getattr(arguments, name)}: must be positive")
    parser = build_parser()
    data = [] if arguments.data == SYNTHETIC else ["--data", arguments.data]
    options = parser.parse_args(["--config", STOCK, *data, *rest])
    for name, value in vars(options).items():
        if name not in (*OPTIONS, "config") and value != parser.get_default(name):
            raise ValueError(f"{name}: an option that accuracy.py does not have")
    check_options(options)
    if options.data is not None and not options.data.exists():
        raise ValueError(f"data {options.data}: no such file; or give {SYNTHETIC}")
    configs: dict[str, dict[str, Any]] = {}
    for file in map(Path, arguments.configs):
        if file.stem in (BASELINE, NULL, *configs):
            raise ValueError(f"configs: {file.stem} is run anyway, or given twice")
        config = load_config(file)
        Codecs.of(config, options.embedding_dim)
        configs[file.stem] = config_to_dict(config)
    return Study(options, configs, tuple(arguments.modes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--configs", nargs="+", required=True, help="YAML files of trec_qcomm")
    add("--seeds", type=int, default=10, help="how many, from 0 (default 10)")
    add("--jobs", type=int, default=1, help="processes of one thread each (default 1)")
    add("--modes", nargs="+", choices=MODES, default=MODES, help="default: both")
    add("--data", default=SYNTHETIC, help="a TSV or folder, as train.py's, or synthetic (default)")
    add("--out", type=Path, default=Path("runs/accuracy"), help="folder (default runs/accuracy)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
