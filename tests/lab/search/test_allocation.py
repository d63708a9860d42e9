"""allocate: within the budget, and as cheap as the best of all combinations."""

import itertools
import random

import pytest

from trec_qcomm.lab.search.allocation import STEPS, Option, allocate, next_finer, price


def random_options(seed: int) -> dict[str, list[Option]]:
    draw = random.Random(seed)
    return {
        f"table {n}": [
            Option(f"{k}", draw.uniform(1, 100), draw.choice([0.0, draw.expovariate(1)]))
            for k in range(draw.randint(1, 5))
        ]
        for n in range(draw.randint(1, 5))
    }


def least_cost(options: dict[str, list[Option]], budget: float) -> float:
    combinations = itertools.product(*options.values())
    within = (c for c in combinations if sum(option.loss for option in c) <= budget)
    return min(sum(option.cost for option in combination) for combination in within)


@pytest.mark.parametrize("seed", range(40))
def test_no_combination_within_the_budget_is_cheaper(seed):
    options = random_options(seed)
    least = sum(min(option.loss for option in each) for each in options.values())
    budget = least * 1.1 + random.Random(seed).uniform(0.1, 3)
    chosen = allocate(options, budget)
    assert list(chosen) == list(options)
    assert all(chosen[item] in options[item] for item in options)
    assert sum(option.loss for option in chosen.values()) <= budget * (1 + 1e-12)
    cost = sum(option.cost for option in chosen.values())
    # Rounding up takes at most one part of the budget for each item.
    reachable = budget * (1 - len(options) / STEPS)
    assert least_cost(options, budget) - 1e-9 <= cost <= least_cost(options, reachable) + 1e-9


def test_the_budget_is_used_up_to_the_last_part():
    options = {f"{n}": [Option("fine", 10, 0), Option("coarse", 1, 0.25)] for n in range(4)}
    assert {o.name for o in allocate(options, 1.0).values()} == {"coarse"}
    assert [o.name for o in allocate(options, 0.99).values()].count("fine") == 1
    assert {o.name for o in allocate(options, 0.0).values()} == {"fine"}
    over = {f"{n}": [Option("fine", 10, 0), Option("coarse", 1, 0.25004)] for n in range(4)}
    assert sum(option.loss for option in allocate(over, 1.0).values()) < 1


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"budget 0\.5: the options of least loss add up to 1"):
        allocate({"a": [Option("x", 1, 1.0)]}, 0.5)
    with pytest.raises(ValueError, match="a: expected one option or more"):
        allocate({"a": []}, 0.5)
    with pytest.raises(ValueError, match="x: cost 1, loss -1: expected numbers"):
        Option("x", 1, -1)


def test_the_next_finer_option_takes_back_most_loss_for_its_cost():
    coarse, middle, fine = Option("2", 10, 0.8), Option("4", 20, 0.2), Option("8", 40, 0.1)
    options = [fine, coarse, middle]
    assert next_finer(options, coarse) == middle
    assert next_finer(options, middle) == fine
    assert next_finer(options, fine) is None
    assert price(coarse, middle) == pytest.approx(0.06)
