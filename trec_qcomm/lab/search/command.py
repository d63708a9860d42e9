"""A codec for every table and direction, within a budget of loss, from trainings of your model.

examples:
  python -m trec_qcomm search --train model.py:train --metrics loss --budget-ne 0.02 --out plan.yaml
  python -m trec_qcomm search --train model.py:make --link-gb-s 0.0125 --data rows.tsv
  python -m trec_qcomm search --train model.py:train --metrics loss --codecs candidates.yaml

NAME in --train is a function train(config, seed, perturbation), as quality.study takes it, or one
with a single argument, the list of the words that are no options of this program: it returns the
training function, or a mapping of arguments of trec_qcomm.search with `train` among them.

Records are in --path, and the same command goes on with them after Ctrl-C. --out is a config for
QComm.from_yaml with the reasons in comments; beside it are plans of half and twice the budget.
--codecs is a YAML file with lists of codecs under forward and backward.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from typing import Any

from trec_qcomm.config import read_yaml
from trec_qcomm.lab.search import SearchResult, search
from trec_qcomm.lab.study import TrainingFailedError

INTERRUPTED, FAILED = 130, 1  # exit status
MERGING = {"auto": "auto", "on": True, "off": False, "search": "search"}
Make = Callable[[list[str]], Mapping[str, Any]]  # words -> arguments of `search`


def main(
    words: Sequence[str] | None = None,
    *,
    make: Make | None = None,
    description: str | None = None,
) -> int:
    """Search, write the plans and print them; the exit status is 2 after a mistake.

    Args:
        words: the command line; None for that of the process.
        make: function that returns the model's arguments of `search`; None: --train names it.
        description: text of --help.
    """
    parser = build_parser(description or __doc__, with_train=make is None)
    options, rest = parser.parse_known_args(words)
    try:
        given = dict((make or _from_file(options.train))(rest))
        arguments = _arguments(options) | {
            name: value for name, value in given.items() if name not in _given(options)
        }
        if "metrics" not in arguments:
            raise ValueError("--metrics: missing; name the losses that keep the budget")
        result = search(**arguments)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {options.path}", file=sys.stderr)
        return INTERRUPTED
    except TrainingFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    print(result)
    write_plans(result, options.out, num_random=options.random)
    plan = result.plan
    print(
        f"{len(plan.choice)} tables, {plan.nbytes:.0f} bytes a rank and step, expected "
        f"{plan.expected:+.4f} %; {plan.verdict or 'not verified'}; wrote {options.out}"
    )
    return 0


def write_plans(result: SearchResult, path: Path, *, num_random: int) -> None:
    """Write the plan, and beside it, by name, those of other budgets and random ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    others = result.random_plans(num_random)
    everything = replace(result, plans={**result.plans, **others})
    for name in everything.plans:
        file = path if name == "plan" else path.with_stem(f"{path.stem}-{name}")
        everything.write(file, name)


def build_parser(description: str | None, *, with_train: bool) -> argparse.ArgumentParser:
    """Return the parser. Args: with_train: whether --train says what is trained."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    if with_train:
        add("--train", required=True, metavar="FILE.py:NAME", help="function, or its factory")
    add("--metrics", nargs="+", help="losses that keep the budget")
    add("--budget-ne", type=float, default=0.02, help="percent of each metric (default 0.02)")
    add("--link-gb-s", type=float, help="GB/s a rank can send: fewest seconds, not fewest bytes")
    add("--codecs", type=Path, metavar="FILE.yaml", help="candidates (default: all that fit)")
    add("--base", help="config with all that is not searched: a file or a preset")
    add("--dense", nargs="+", metavar="PATTERN", help="groups of dense parameters to search, too")
    add("--unique-bags", choices=MERGING, help="send equal bags once (default: auto)")
    add("--out", type=Path, default=Path("plan.yaml"), help="config to write (default plan.yaml)")
    add("--path", type=Path, default=Path("runs/search"), help="records (default runs/search)")
    add("--resume", action="store_true", help="what is done anyway: go on with the records")
    add("--first-seed", type=int, default=1000, help="seeds are from here on (default 1000)")
    add("--probe-seeds", type=int, default=3, help="float32 trainings with probes (default 3)")
    add("--calibration-seeds", type=int, default=4, help="seeds of coarse trainings (default 4)")
    add("--verification-seeds", type=int, default=30, help="at most; 0: not (default 30)")
    add("--rounds", type=int, default=3, help="verifications at most (default 3)")
    add("--verify-all", action="store_true", help="half and twice the budget, too")
    add("--use", type=float, default=0.5, help="share of the budget to plan with (default 0.5)")
    add("--every", type=int, default=50, help="steps between probes (default 50)")
    add("--random", type=int, default=0, metavar="N", help="random plans of equal cost, too")
    add("--jobs", type=int, default=1, help="processes of one thread each (default 1)")
    return parser


_OPTIONAL = {
    "metrics",
    "base",
    "dense",
    "unique_bags",
}  # the model may have its own


def _given(options: argparse.Namespace) -> set[str]:
    """Return the optional arguments that the command line has."""
    return {name for name in _OPTIONAL if getattr(options, name) is not None}


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the command line says as arguments of `search`."""
    arguments: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("link_gb_s", "path", "first_seed", "probe_seeds", "calibration_seeds",
                     "every", "jobs", "verify_all", "use")
    }  # fmt: skip
    verified = options.verification_seeds > 0
    arguments["rounds"] = options.rounds if verified else 0
    if verified:
        arguments["verification_seeds"] = options.verification_seeds
    if options.codecs is not None:
        if not options.codecs.is_file():
            raise ValueError(f"--codecs {options.codecs}: no such file")
        arguments["candidates"] = read_yaml(options.codecs)
    arguments |= {name: getattr(options, name) for name in _given(options)}
    if "unique_bags" in arguments:
        arguments["unique_bags"] = MERGING[arguments["unique_bags"]]
    return arguments | {"budget": options.budget_ne}


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


if __name__ == "__main__":
    sys.exit(main())
