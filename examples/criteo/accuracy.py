"""Whether a codec costs accuracy: many paired trainings by emulation, and their statistics.

  python examples/criteo/accuracy.py --configs configs/int8.yaml configs/best.yaml --data train.txt
  python examples/criteo/accuracy.py --configs my.yaml --seeds 10 --modes eval-only --jobs 2

Each config is trained from each of the seeds 0, 1, ... in one process and one thread that plays the
ranks (trec_qcomm.comm.emulate), on the same rows in the same order as train.py does with a
table-wise plan. Always run beside them: `fp32`, what all is compared to, and `null`, fp32 with its
initial embeddings off by a relative 1e-6: the noise floor of the comparison.

Modes: `training` trains with the codec and scores with it on and off; `eval-only` switches the
codec on for the fp32-trained model of the same seed.

A run is one record in --out/runs.jsonl. What is there is not run again: after Ctrl-C, or for more
seeds or configs, give the command again. The options of data and model are those of train.py; the
defaults are those of the table in the documents: 4 ranks x 128, every category kept, 50 seeds.
Without --data the rows are synthetic, others for every seed, and the figures are not those of the
table. study/ has the engine, which knows no DLRM; emulation/ has the trainings.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from emulation.client import EmulatedTrainer, codecs_of
from options import FAILED, INTERRUPTED, SETUP, STOCK, build_parser, check_options, setup_of
from study.engine import MODES, Configuration, Study
from study.processes import TrainingFailedError, run_all
from study.show import format_table, verdict, write_plot

from trec_qcomm.config import load_config

FP32 = Path(__file__).parents[2] / "configs" / "fp32.yaml"
DEFAULTS = {"ranks": 4, "batch_size": 128}
# A study is of one process on a CPU, which plays ranks with a table-wise plan.
NO_OPTIONS = ("plan", "device")


def main() -> int:
    """Run what is missing and show all; the exit status is 1 after an error, 130 after Ctrl-C."""
    parser = _parser()
    arguments, rest = parser.parse_known_args()
    path: Path = arguments.out / "runs.jsonl"
    try:
        study = make_study(arguments, rest)
        missing = study.missing(study.read(path))
    except ValueError as error:
        parser.error(str(error))
    try:
        run_all(study, missing, path, jobs=arguments.jobs)
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {path}", file=sys.stderr)
        return INTERRUPTED
    except TrainingFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    records = [record for record in study.read(path) if record.seed in study.seeds]
    names = [configuration.name for configuration in study.configurations]
    table = format_table(records, names)
    (arguments.out / "table.md").write_text(table + "\n")
    print(table)
    if not write_plot(records, names, arguments.out):
        print("no plot: matplotlib is not installed")
    print(f"{verdict(records, names)}; {arguments.seeds} seeds; {path}")
    return 0


def make_study(arguments: argparse.Namespace, rest: Sequence[str]) -> Study:
    """Check everything that can be wrong. Raises ValueError naming the option."""
    for name in ("seeds", "jobs"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"{name} {getattr(arguments, name)}: must be positive")
    options = _training_options(rest)
    configurations = []
    for file in map(Path, arguments.configs):
        load_config(file)  # whose errors name file and field
        configurations.append(Configuration(file.stem, file.read_text()))
    setup = {name: value for name, value in setup_of(options).items() if name not in NO_OPTIONS}
    study = Study(
        name="accuracy",
        configurations=configurations,
        seeds=range(arguments.seeds),
        train=EmulatedTrainer(options),
        baseline=FP32.read_text(),
        num_ranks=options.ranks,
        setup=setup,
        modes=tuple(arguments.modes),
    )
    for configuration in configurations:
        codecs_of(configuration, options.embedding_dim)
    return study


def _training_options(words: Sequence[str]) -> argparse.Namespace:
    """Return options of train.py. Raises ValueError: one that does nothing in a study."""
    parser = build_parser()
    parser.set_defaults(**DEFAULTS)
    options = parser.parse_args(["--config", STOCK, *words])
    for name, value in vars(options).items():
        is_known = name in (*SETUP, "ranks", "config") and name not in NO_OPTIONS
        if not is_known and value != parser.get_default(name):
            raise ValueError(f"{name}: an option that accuracy.py does not have")
    if options.hash_buckets is None and options.min_count is None:
        options.min_count = 1
    check_options(options)
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--configs", nargs="+", required=True, help="YAML files of trec_qcomm")
    add("--seeds", type=int, default=50, help="how many, from 0 (default 50)")
    add("--jobs", type=int, default=1, help="processes of one thread each (default 1)")
    add("--modes", nargs="+", choices=MODES, default=MODES, help="default: both")
    add("--out", type=Path, default=Path("runs/accuracy"), help="folder (default runs/accuracy)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
