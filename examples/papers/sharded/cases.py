"""What zionex.py measures without judging: cases by name, each a few numbers.

Knows: configs that ship, plans. Does not know: claims.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from plans.files import plan_names

from examples.papers.measurements import Values
from examples.papers.parts import Request
from examples.papers.sharded import lookups
from examples.papers.sharded.digests import digest, stock_digest
from trec_qcomm import Config, presets
from trec_qcomm.config import load_preset

Cases = Mapping[str, Callable[[], Values]]
FOUR = Path(__file__).parent / "four_shardings.yaml"
FOUR_WORDS = ("--plan", str(FOUR), "--ranks", "4", "--ranks-per-node", "2")
WORLD_SIZES = (2, 3)
REFUSED = -1.0
PLANS = Path(__file__).resolve().parents[2] / "bench" / "results" / "placements_4_hosts.jsonl"
PLAYED = tuple(f"{ranks} ranks, {plan}" for ranks in WORLD_SIZES for plan in plan_names())


def repeat_cases(request: Request) -> Cases:
    """Return, by number of ranks and plan, whether each config that ships gives equal bits."""
    return {name: partial(_repeats, request, int(name[0]), name.split(", ")[1]) for name in PLAYED}


def four_cases(request: Request) -> Cases:
    """Return whether the plugin in float32, with four shardings, has TorchRec's bits."""
    return {"stock": partial(_as_stock, request)}


def lookup_cases(request: Request) -> Cases:
    """Return what lookups of 16 bits send; options of train.py do nothing here."""
    return {dtype: partial(_uncoded_nbytes, dtype) for dtype in lookups.DTYPES}


def _uncoded_nbytes(dtype: str) -> Values:
    """Return the uncoded bytes of a step's rows; 0 where the lookup is refused."""
    return {"uncoded_nbytes": float(lookups.uncoded_nbytes(dtype))}


def planner_cases(request: Request) -> Cases:
    """Return median steps of the bench, whose plans take turns; options do nothing here.

    dealt_again_s: the same plan as dealt_s under another name: how far equal plans are apart.
    """
    steps: dict[str, dict[str, float]] = {}
    for line in PLANS.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        case = steps.setdefault(f"{fields['configuration']}, {fields['rate']}", {})
        case[_placement(fields["setup"]["plan"])] = fields["step_s"]["p50"]
    return {name: partial(dict, values) for name, values in steps.items()}


def _placement(plan: str) -> str:
    """Return what a plan of the bench is here."""
    if plan == "table_wise":
        return "dealt_s"
    if plan.startswith("Plan(sharding='planned'"):
        return "planned_s"
    if plan.startswith("Plan(sharding='greedy_table_wise'"):
        return "greedy_s"
    return "dealt_again_s" if plan.startswith("Plan(sharding='table_wise'") else f"{plan}_s"


def _repeats(request: Request, ranks: int, plan: str) -> Values:
    """Return 1 by config where two trainings have equal bits, 0 where not, REFUSED where it is.

    `another_seed`: 1 where the bits of another seed are others, which shows that they are seen.
    """
    words = [*_place(ranks, plan), *request.words]
    equal = {name: _equal_bits(words, load_preset(name)) for name in presets()}
    seeds = (digest(words, load_preset("fp32"), seed=seed) for seed in (0, 1))
    return equal | {"another_seed": float(len(set(seeds)) == 2)}


def _equal_bits(words: Sequence[str], config: Config) -> float:
    """Return 1, 0 or REFUSED. Raises ValueError: an error other than that of a mask's sharding."""
    try:
        return float(digest(words, config) == digest(words, config))
    except ValueError as error:
        if "forward_mask needs a table- or column-wise sharding" not in str(error):
            raise
        return REFUSED


def _place(ranks: int, plan: str) -> list[str]:
    return ["--ranks", str(ranks), "--ranks-per-node", "1", "--plan", plan]


def _as_stock(request: Request) -> Values:
    words = [*FOUR_WORDS, *request.words]
    exact = digest(words, load_preset("fp32"))
    return {
        "fp32": float(exact == stock_digest(words)),
        "another_config": float(exact != digest(words, load_preset("fp16_bf16"))),
    }
