"""allocate: within the budget, and as cheap as the best of all combinations."""

import itertools
import random

import pytest

from trec_qcomm.lab.search.allocation import STEPS, Priced, allocate, next_finer, price


def random_options(seed: int) -> dict[str, dict[str, Priced]]:
    draw = random.Random(seed)
    return {
        f"table {n}": {
            f"{k}": Priced(draw.uniform(1, 100), draw.choice([0.0, draw.expovariate(1)]))
            for k in range(draw.randint(1, 5))
        }
        for n in range(draw.randint(1, 5))
    }


def least_cost(options: dict[str, dict[str, Priced]], budget: float) -> float:
    combinations = itertools.product(*(each.values() for each in options.values()))
    within = (c for c in combinations if sum(option.loss for option in c) <= budget)
    return min(sum(option.cost for option in combination) for combination in within)


@pytest.mark.parametrize("seed", range(40))
def test_no_combination_within_the_budget_is_cheaper(seed):
    options = random_options(seed)
    least = sum(min(option.loss for option in each.values()) for each in options.values())
    budget = least * 1.1 + random.Random(seed).uniform(0.1, 3)
    chosen = allocate(options, budget)
    assert list(chosen) == list(options)
    priced = [options[item][name] for item, name in chosen.items()]
    assert sum(option.loss for option in priced) <= budget * (1 + 1e-12)
    # Rounding up takes at most one part of the budget for each item.
    reachable = budget * (1 - len(options) / STEPS)
    cost = sum(option.cost for option in priced)
    assert least_cost(options, budget) - 1e-9 <= cost <= least_cost(options, reachable) + 1e-9


def test_the_budget_is_used_up_to_the_last_part():
    options = {f"{n}": {"fine": Priced(10, 0), "coarse": Priced(1, 0.25)} for n in range(4)}
    assert set(allocate(options, 1.0).values()) == {"coarse"}
    assert list(allocate(options, 0.99).values()).count("fine") == 1
    assert set(allocate(options, 0.0).values()) == {"fine"}
    over = {f"{n}": {"fine": Priced(10, 0), "coarse": Priced(1, 0.25004)} for n in range(4)}
    assert list(allocate(over, 1.0).values()).count("coarse") == 3
    with pytest.raises(ValueError, match=r"budget 0\.5: the options of least loss add up to 1"):
        allocate({"a": {"x": Priced(1, 1.0)}}, 0.5)


def test_the_next_finer_option_takes_back_most_loss_for_its_cost():
    options = {"8": Priced(40, 0.1), "2": Priced(10, 0.8), "4": Priced(20, 0.2)}
    assert [next_finer(options, name) for name in ("2", "4", "8")] == ["4", "8", None]
    assert price(options["2"], options["4"]) == pytest.approx(0.06)
