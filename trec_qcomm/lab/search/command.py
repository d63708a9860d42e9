"""Find a codec for every table and direction, within a budget of loss, by training your model.

examples:
  python -m trec_qcomm search --train model.py:train --metrics loss --budget-ne 0.02 --out plan.yaml
  python -m trec_qcomm search --train model.py:make --link-gb-s 0.0125 --data rows.tsv
  python -m trec_qcomm search --train model.py:train --metrics loss --codecs candidates.yaml

NAME in --train is a function train(config, seed, perturbation), as for quality.study. Or it is a
function of one argument, the list of words that are no options of this program. It then returns the
training function, or a mapping of arguments of trec_qcomm.search that has `train`.

Records are in --path, and the same command goes on with them after Ctrl-C. --out is a config for
QComm.from_yaml with the reasons in comments. Plans for half and twice the budget are written beside
it. --codecs is a YAML file with lists of codecs under forward and backward.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from typing import Any

from trec_qcomm.config import read_yaml
from trec_qcomm.lab.command_line import parser_of
from trec_qcomm.lab.search import search
from trec_qcomm.lab.study import TrainingFailedError

INTERRUPTED, FAILED = 130, 1  # exit status
MERGING = {"auto": "auto", "on": True, "off": False}
Make = Callable[[list[str]], Mapping[str, Any]]  # words -> arguments of `search`


def main(
    words: Sequence[str] | None = None, *, make: Make | None = None, description: str | None = None
) -> int:
    """Search, write the plans and print them; the exit status is 2 after a mistake.

    Args:
        words: the command line; None: that of this process.
        make: function that returns the model's arguments of `search`; the command line overrides
            them. None: --train names the function.
        description: text of --help.
    """
    parser = build_parser(description or __doc__, with_train=make is None)
    options, rest = parser.parse_known_args(words)
    try:
        given = make(rest) if make else _from_file(options.train)(rest)
        arguments = {"path": Path("runs/search"), **given, **_arguments(options)}
        if "metrics" not in arguments:
            raise ValueError("--metrics: missing; name the losses that keep the budget")
        result = search(**arguments)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {arguments['path']}", file=sys.stderr)
        return INTERRUPTED
    except TrainingFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    print(result)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in result.plans:
        stem = options.out.stem if name == "plan" else f"{options.out.stem}-{name}"
        result.write(options.out.with_stem(stem), name)
    plan = result.plan
    print(
        f"{len(plan.choice)} tables, {plan.nbytes:.0f} bytes a rank and step, expected "
        f"{plan.expected:+.4f} %; {plan.verdict or 'not verified'}; wrote {options.out}"
    )
    return 0


def build_parser(description: str | None, *, with_train: bool) -> argparse.ArgumentParser:
    """Return the parser. Args: with_train: whether it has --train."""
    # `search` has the defaults.
    options = {"allow_abbrev": False, "argument_default": argparse.SUPPRESS}
    parser = parser_of("search", description, **options)
    if not with_train:  # a program of its own
        parser.prog = Path(sys.argv[0]).name
    add = parser.add_argument
    if with_train:
        add("--train", required=True, metavar="FILE.py:NAME", help="function, or its factory")
    add("--out", type=Path, default=Path("plan.yaml"), help="config to write (default plan.yaml)")
    add("--metrics", nargs="+", help="losses that keep the budget")
    add("--budget-ne", dest="budget", type=float, help="percent of each metric (default 0.02)")
    add("--link-gb-s", type=float, help="GB/s a rank can send: fewest seconds, not fewest bytes")
    add("--codecs", dest="candidates", type=_codecs, metavar="FILE.yaml", help="candidates")
    add("--base", help="config with all that is not searched: a file or a preset")
    add("--unique-bags", choices=MERGING, help="send equal bags once (default: auto)")
    add("--path", type=Path, help="records (default runs/search)")
    add("--first-seed", type=int, help="seeds are from here on (default 1000)")
    add("--probe-seeds", type=int, help="float32 trainings with probes (default 3)")
    add("--calibration-seeds", type=int, help="seeds of coarse trainings (default 4)")
    add("--verification-seeds", type=int, help="at most; 0: not (default 30)")
    add("--rounds", type=int, help="verifications at most (default 3)")
    add("--use", type=float, help="share of the budget to plan with (default 0.5)")
    add("--every", type=int, help="steps between probes (default 50)")
    add("--jobs", type=int, help="processes of one thread each (default 1)")
    return parser


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the command line says as arguments of `search`."""
    words = {k: v for k, v in vars(options).items() if k not in ("train", "out")}
    if words.get("verification_seeds") == 0:
        words |= {"verification_seeds": 5, "rounds": 0}
    if "unique_bags" in words:
        words["unique_bags"] = MERGING[words["unique_bags"]]
    return words


def _codecs(path: str) -> object:
    """Return the candidates of a file."""
    try:
        return read_yaml(path)
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _from_file(name: str) -> Make:
    """Return a function that makes the arguments of `search` by what FILE.py:NAME names."""
    path, _, attribute = name.rpartition(":")
    if not path.endswith(".py") or not Path(path).is_file() or not attribute:
        raise ValueError(f"--train {name}: expected FILE.py:NAME of a file that is there")
    sys.path.insert(0, str(Path(path).resolve().parent))  # as python FILE.py has it
    spec = spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[Path(path).stem] = module  # for other processes, which import it by name
    spec.loader.exec_module(module)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ValueError(f"--train {name}: {path} has no function {attribute}")
    if len(signature(function).parameters) != 1:
        return lambda words: {"train": _without_words(function, words)}

    def make(words: list[str]) -> Mapping[str, Any]:
        made = function(words)
        return made if isinstance(made, Mapping) else {"train": made}

    return make


def _without_words(train: Any, words: Sequence[str]) -> Any:
    if words:
        raise ValueError(f"{words[0]}: no option of this program, and --train takes no words")
    return train
