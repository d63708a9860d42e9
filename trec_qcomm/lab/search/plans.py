"""Plans: the codecs of least cost within a budget of loss, and a step back where one failed.

Knows: loss models, the allocation. Does not know: trainings, files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from trec_qcomm.config import GradientRule
from trec_qcomm.ext.planner.cost_model import FLOAT32_NBYTES, measure_throughput
from trec_qcomm.lab.search import allocation
from trec_qcomm.lab.search.candidates import Candidates
from trec_qcomm.lab.search.choices import Choice, DenseChoice, Pair, best
from trec_qcomm.lab.search.losses.model import LossModel
from trec_qcomm.lab.search.losses.noise import Noise
from trec_qcomm.lab.search.losses.options import (
    Direction,
    Item,
    Option,
    codec_of,
    is_exact,
    text_of,
)
from trec_qcomm.lab.study.paired import Change as PairedChange

Options = dict[Item, Option]  # what each item has


@dataclass(frozen=True)
class Blame:
    """The option that a step back was made from.

    Args:
        direction, option: what some tables (or groups of parameters) had.
        by_name: what each of them has instead.
        expected: expected loss of this option on these, in percent.
        saved: cost that it saved against what they have instead.
    """

    direction: Direction
    option: Option
    by_name: Mapping[str, Option]
    expected: float
    saved: float

    def __str__(self) -> str:
        names, noun = ", ".join(sorted(self.by_name)), "tables"
        if self.direction == "dense":
            noun = "groups"
        return (
            f"{self.direction} {text_of(self.option)} of {len(self.by_name)} {noun} ({names}): "
            f"expected {self.expected:+.4f} %, which is most for each byte that it saves"
        )


@dataclass(frozen=True)
class Plan:
    """A choice of codecs for all tables, and for groups of dense parameters.

    Args:
        name: name of the configuration.
        budget: limit in percent that its verified mean is to keep.
        options: what each item has.
        nbytes: bytes of all items that a rank sends in a step.
        cost: what was kept small: the bytes, or seconds.
        expected: expected loss in percent.
        error: standard error of the expected loss, that of the model's prices alone.
        verified: measured change by metric; empty where it was not verified.
        verdict: what the verification says.
        blames: steps back that led to it from the first plan of its budget.
    """

    name: str
    budget: float
    options: Mapping[Item, Option]
    nbytes: float
    cost: float
    expected: float
    error: float
    verified: Mapping[str, PairedChange] = field(default_factory=dict)
    verdict: str = ""
    blames: tuple[Blame, ...] = ()

    @property
    def choice(self) -> Choice:
        """Codecs by table."""
        pairs: dict[str, Pair] = {}
        for (name, direction), option in self.options.items():
            if not isinstance(option, GradientRule):
                pairs[name] = replace(pairs.get(name, Pair()), **{direction: option})
        return pairs

    @property
    def dense(self) -> DenseChoice:
        """Rules by group of dense parameters; empty where these were not searched."""
        rules = {n: o for (n, _), o in self.options.items() if isinstance(o, GradientRule)}
        return rules


@dataclass(frozen=True)
class Planner:
    """Options of every item, and what is chosen of them.

    Args:
        model: expected losses.
        candidates: options to choose from.
        link_gb_s: GB/s that a rank sends, if seconds are to be few; None: bytes.
    """

    model: LossModel
    candidates: Candidates
    link_gb_s: float | None = None

    def plan(self, name: str, budget: float, *, most: float) -> Plan:
        """Return the plan of least cost whose expected losses add up to `most` percent or less.

        Args: budget: limit that it is to keep when it is verified.
        """
        named = {"/".join(item): list(by.values()) for item, by in self._priced().items()}
        chosen = allocation.allocate(named, most)
        options = {item: self._option(item, chosen["/".join(item)]) for item in self._items}
        return self._make(name, budget, options)

    def random_plan(self, name: str, cost: float, random: Random) -> Plan:
        """Return a plan of random options that costs as much as another plan, within 1 %.

        Random options are exchanged for others, one after the other, where that brings the cost
        nearer; where it comes no nearer, it begins anew.

        Raises: ValueError: no such plan was met.
        """
        priced = {item: list(by.items()) for item, by in self._priced().items()}
        items = list(priced)
        for _ in range(1000):
            chosen = {item: random.choice(pairs) for item, pairs in priced.items()}
            total = sum(option.cost for _, option in chosen.values())
            for _ in range(10 * len(items)):
                if abs(total - cost) <= 0.01 * cost:
                    return self._make(name, 0.0, {item: chosen[item][0] for item in items})
                item = random.choice(items)
                pair = random.choice(priced[item])
                changed = total + pair[1].cost - chosen[item][1].cost
                if abs(changed - cost) < abs(total - cost):
                    total, chosen[item] = changed, pair
        raise ValueError(f"{name}: no choice of the candidates costs {cost:g}")

    def has(self, pair: Pair) -> bool:
        """Return whether all tables were probed with a pair of codecs."""
        noise = self.model.measured.noise
        return all((*i, pair[i[1]]) in noise for i in self._items if i[1] != "dense")

    def all_with(self, name: str, pair: Pair, budget: float = 0.0) -> Plan:
        """Return the plan in which all tables have one pair of codecs, and dense gradients those of
        configs/best.yaml, if they are candidates; exact ones for an exact pair.

        Raises: KeyError: a codec was not probed.
        """
        dense = best()[1]
        is_dense = dense in self.candidates.dense and pair != Pair()
        options: Options = {
            item: (dense if is_dense else self.candidates.dense[0])
            if item[1] == "dense" else pair[item[1]]
            for item in self._items
        }  # fmt: skip
        return self._make(name, budget, options)

    def step_back(self, plan: Plan, *, only_forward: bool = False) -> Plan | None:
        """Return the plan with the dearest option replaced by finer ones; None if all are exact.

        The dearest option is that of one direction, over all tables that have it, whose expected
        loss is largest for each byte (or second) that it saves against the next finer options.
        Args: only_forward: whether rows alone are to blame.
        """
        priced = self._priced()
        finer: dict[tuple[Direction, Option], dict[Item, _Step]] = {}
        for item, option in plan.options.items():
            chosen = priced[item][option]
            other = allocation.next_finer(list(priced[item].values()), chosen)
            if other is not None and not (only_forward and item[1] != "forward"):
                finer.setdefault((item[1], option), {})[item] = chosen, other
        if not finer:
            return None
        (direction, option), steps = max(finer.items(), key=lambda pair: _joint_price(pair[1]))
        options = dict(plan.options)
        options |= {item: self._option(item, other) for item, (_, other) in steps.items()}
        blame = Blame(
            direction, option, {item[0]: options[item] for item in steps},
            expected=sum(chosen.loss for chosen, _ in steps.values()),
            saved=sum(other.cost - chosen.cost for chosen, other in steps.values()),
        )  # fmt: skip
        made = self._make(plan.name, plan.budget, options)
        return replace(made, blames=(*plan.blames, blame))

    @property
    def _items(self) -> list[Item]:
        return self.model.measured.items

    def _priced(self) -> dict[Item, dict[Option, allocation.Option]]:
        """Return what each option of each item costs and loses."""
        priced: dict[Item, dict[Option, allocation.Option]] = {}
        for item in self._items:
            by_option = priced.setdefault(item, {})
            for option in self.candidates[item[1]]:
                loss = self.model.loss(*item, option)
                if loss is not None:
                    noise = self.model.measured.noise[(*item, option)]
                    cost = cost_of(noise, option, self.link_gb_s)
                    by_option[option] = allocation.Option(repr(option), cost, loss)
        return priced

    def _option(self, item: Item, chosen: allocation.Option) -> Option:
        return next(o for o in self.candidates[item[1]] if repr(o) == chosen.name)

    def _make(self, name: str, budget: float, options: Options) -> Plan:
        noise = {item: self.model.measured.noise[(*item, o)] for item, o in options.items()}
        return Plan(
            name=name,
            budget=budget,
            options=options,
            nbytes=sum(each.nbytes for each in noise.values()),
            cost=sum(cost_of(noise[i], o, self.link_gb_s) for i, o in options.items()),
            expected=sum(self.model.loss(*item, o) or 0.0 for item, o in options.items()),
            error=self.model.error(options),
        )


_Step = tuple[allocation.Option, allocation.Option]  # what is chosen, and what is finer


def _joint_price(steps: Mapping[Item, _Step]) -> float:
    """Return the loss that several steps take back for each unit of cost."""
    chosen, other = (
        allocation.Option("", sum(s[n].cost for s in steps.values()),
                          sum(s[n].loss for s in steps.values()))
        for n in (0, 1)
    )  # fmt: skip
    return allocation.price(chosen, other)


def cost_of(noise: Noise, option: Option, link_gb_s: float | None) -> float:
    """Return the bytes of a step; with a link the seconds to encode, send and decode them.

    Speeds are those of one thread of this machine's CPU.
    """
    if link_gb_s is None:
        return noise.nbytes
    raw = FLOAT32_NBYTES * noise.rows * noise.dim
    seconds = noise.nbytes / 1e9 / link_gb_s
    if is_exact(option) or not raw:
        return seconds
    throughput = measure_throughput(codec_of(option), noise.dim)
    return seconds + throughput.codec_s(encoded_nbytes=raw, decoded_nbytes=raw)
