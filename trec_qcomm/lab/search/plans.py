"""Plans: the codecs of least cost within a budget of loss, and a step back where one failed.

Knows: loss models, the allocation. Does not know: trainings, files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trec_qcomm.config import GradientRule
from trec_qcomm.ext.planner.cost_model import FLOAT32_NBYTES, measure_throughput
from trec_qcomm.lab.search.allocation import Priced, allocate, next_finer, price
from trec_qcomm.lab.search.candidates import (
    Candidates,
    Direction,
    Item,
    Option,
    codec_of,
    is_exact,
    label,
)
from trec_qcomm.lab.search.choices import Choice, DenseChoice, Pair, best
from trec_qcomm.lab.search.losses import LossModel
from trec_qcomm.lab.search.noise import Noise
from trec_qcomm.lab.study.paired import Change as PairedChange

Options = dict[Item, Option]  # what each item has


@dataclass(frozen=True)
class Plan:
    """A choice of codecs for all tables, and for groups of dense parameters.

    Args:
        name: name of the configuration.
        budget: limit in percent that its verified mean is to keep.
        options: what each item has.
        nbytes: bytes of all items that a rank sends in a step.
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
    expected: float
    error: float
    verified: Mapping[str, PairedChange] = field(default_factory=dict)
    verdict: str = ""
    blames: tuple[str, ...] = ()

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
        return {n: o for (n, _), o in self.options.items() if isinstance(o, GradientRule)}


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
        return self._make(name, budget, allocate(self._priced(), most))

    def has(self, pair: Pair) -> bool:
        """Return whether all tables were probed with a pair of codecs."""
        noise = self.model.measured.noise
        return all((*i, pair[i[1]]) in noise for i in self._items if i[1] != "dense")

    def all_with(self, name: str, pair: Pair) -> Plan:
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
        return self._make(name, 0.0, options)

    def step_back(self, plan: Plan, *, only_forward: bool = False) -> Plan | None:
        """Return the plan with the dearest option replaced by finer ones; None if all are exact.

        The dearest option is that of one direction, over all tables that have it, whose expected
        loss is largest for each byte (or second) that it saves against the next finer options.
        Args: only_forward: whether rows alone are to blame.
        """
        priced = self._priced()
        finer: dict[tuple[Direction, Option], dict[Item, Option]] = {}
        for item, option in plan.options.items():
            other = next_finer(priced[item], option)
            if other is not None and not (only_forward and item[1] != "forward"):
                finer.setdefault((item[1], option), {})[item] = other
        if not finer:
            return None

        def price_of(case: tuple[Direction, Option]) -> float:
            pairs = [(priced[i][case[1]], priced[i][other]) for i, other in finer[case].items()]
            chosen, others = (
                Priced(sum(each.cost for each in side), sum(each.loss for each in side))
                for side in zip(*pairs, strict=True)
            )
            return price(chosen, others)

        direction, option = dearest = max(finer, key=price_of)
        lost = sum(priced[item][option].loss for item in finer[dearest])
        names = ", ".join(sorted(name for name, _ in finer[dearest]))
        blame = (
            f"{direction} {label(option)} of {names}: "
            f"expected {lost:+.4f} %, which is most for each byte that it saves"
        )
        made = self._make(plan.name, plan.budget, {**plan.options, **finer[dearest]})
        return replace(made, blames=(*plan.blames, blame))

    @property
    def _items(self) -> list[Item]:
        return self.model.measured.items

    def _priced(self) -> dict[Item, dict[Option, Priced]]:
        """Return what each option of each item costs and loses."""
        priced: dict[Item, dict[Option, Priced]] = {}
        for item in self._items:
            for option in self.candidates[item[1]]:
                loss = self.model.loss(*item, option)
                if loss is not None:
                    cost = cost_of(self.model.measured.noise[*item, option], option, self.link_gb_s)
                    priced.setdefault(item, {})[option] = Priced(cost, loss)
        return priced

    def _make(self, name: str, budget: float, options: Options) -> Plan:
        model, noise = self.model, self.model.measured.noise
        return Plan(
            name, budget, options,
            nbytes=sum(noise[*i, o].nbytes for i, o in options.items()),
            expected=sum(model.loss(*i, o) or 0.0 for i, o in options.items()),
            error=model.error(options),
        )  # fmt: skip


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
