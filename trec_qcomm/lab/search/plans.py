"""Plans: codecs of least cost within a budget of loss, and steps back from failed plans.

Knows: loss models, the allocation. Does not know: trainings, files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trec_qcomm.config.tables import Direction
from trec_qcomm.core.codec import Codec
from trec_qcomm.ext.planner.cost_model import FLOAT32_NBYTES, measure_throughput
from trec_qcomm.lab.search.allocation import Priced, allocate, next_finer, price
from trec_qcomm.lab.search.candidates import EXACT, Candidates, Item, label
from trec_qcomm.lab.search.choices import Choice, Pair
from trec_qcomm.lab.search.losses import LossModel
from trec_qcomm.lab.search.noise import Noise
from trec_qcomm.lab.study.paired import Change as PairedChange

Codecs = Mapping[Item, Codec]  # what each item has


@dataclass(frozen=True)
class Plan:
    """A choice of codecs for all tables.

    Args:
        name: name of the configuration.
        budget: limit in percent for its verified mean.
        codecs: codec of each item.
        nbytes: bytes of all items that a rank sends in a step.
        expected: expected loss in percent.
        error: standard error of the expected loss, from the model's prices alone.
        verified: measured change by metric; empty if it was not verified.
        verdict: verdict of the verification.
        blames: steps back that led to it from the first plan of its budget.
    """

    name: str
    budget: float
    codecs: Codecs
    nbytes: float
    expected: float
    error: float
    verified: Mapping[str, PairedChange] = field(default_factory=dict)
    verdict: str = ""
    blames: tuple[str, ...] = ()

    @property
    def choice(self) -> Choice:
        """Codecs by table."""
        tables = dict.fromkeys(table for table, _ in self.codecs)
        return {t: Pair(self.codecs[t, "forward"], self.codecs[t, "backward"]) for t in tables}


@dataclass(frozen=True)
class Planner:
    """Planner, which chooses a codec for every item.

    Args:
        model: expected losses.
        candidates: codecs to choose from.
        link_gb_s: GB/s that a rank sends, to save seconds; None: to save bytes.
    """

    model: LossModel
    candidates: Candidates
    link_gb_s: float | None = None

    def plan(self, name: str, budget: float, *, most: float) -> Plan:
        """Return the plan of least cost whose expected losses add up to `most` percent or less.

        Args: budget: limit for its verification.
        """
        return self._make(name, budget, allocate(self._priced(), most))

    def has(self, pair: Pair) -> bool:
        """Return whether all tables were probed with a pair of codecs."""
        return all(
            (*item, pair[item[1]]) in self.model.measured.noise
            for item in self.model.measured.items
        )

    def all_with(self, name: str, pair: Pair) -> Plan:
        """Return the plan in which all tables have one pair of codecs.

        Raises: KeyError: a codec was not probed.
        """
        return self._make(name, 0.0, {item: pair[item[1]] for item in self.model.measured.items})

    def step_back(self, plan: Plan, *, only_forward: bool = False) -> Plan | None:
        """Return the plan with the dearest codec replaced by finer ones; None if all are exact.

        The dearest codec has the largest expected loss for each byte (or second) that it saves
        against the next finer codecs, in one direction, over all tables that have it.

        Args: only_forward: whether only rows are to blame.
        """
        priced = self._priced()
        finer: dict[tuple[Direction, Codec], dict[Item, Codec]] = {}
        for item, codec in plan.codecs.items():
            other = next_finer(priced[item], codec)
            if other is not None and not (only_forward and item[1] == "backward"):
                finer.setdefault((item[1], codec), {})[item] = other
        if not finer:
            return None

        def price_of(case: tuple[Direction, Codec]) -> float:
            pairs = [(priced[i][case[1]], priced[i][other]) for i, other in finer[case].items()]
            chosen, others = (
                Priced(sum(each.cost for each in side), sum(each.loss for each in side))
                for side in zip(*pairs, strict=True)
            )
            return price(chosen, others)

        direction, codec = dearest = max(finer, key=price_of)
        lost = sum(priced[item][codec].loss for item in finer[dearest])
        names = ", ".join(sorted(table for table, _ in finer[dearest]))
        blame = (
            f"{direction} {label(codec)} of {names}: "
            f"expected {lost:+.4f} %, which is most for each byte that it saves"
        )
        made = self._make(plan.name, plan.budget, {**plan.codecs, **finer[dearest]})
        return replace(made, blames=(*plan.blames, blame))

    def _priced(self) -> dict[Item, dict[Codec, Priced]]:
        """Return what each codec of each item costs and loses."""
        priced: dict[Item, dict[Codec, Priced]] = {}
        for item in self.model.measured.items:
            for codec in self.candidates[item[1]]:
                loss = self.model.loss(*item, codec)
                if loss is not None:
                    cost = cost_of(self.model.measured.noise[*item, codec], codec, self.link_gb_s)
                    priced.setdefault(item, {})[codec] = Priced(cost, loss)
        return priced

    def _make(self, name: str, budget: float, codecs: Codecs) -> Plan:
        model = self.model
        return Plan(
            name, budget, codecs,
            nbytes=sum(model.measured.noise[*item, codec].nbytes for item, codec in codecs.items()),
            expected=sum(model.loss(*item, codec) or 0.0 for item, codec in codecs.items()),
            error=model.error(codecs),
        )  # fmt: skip


def cost_of(noise: Noise, codec: Codec, link_gb_s: float | None) -> float:
    """Return the bytes of a step; with a link the seconds to encode, send and decode them.

    Speeds are those of one thread of this machine's CPU.
    """
    if link_gb_s is None:
        return noise.nbytes
    raw = FLOAT32_NBYTES * noise.rows * noise.dim
    seconds = noise.nbytes / 1e9 / link_gb_s
    if codec == EXACT or not raw:
        return seconds
    throughput = measure_throughput(codec, noise.dim)
    return seconds + throughput.codec_s(encoded_nbytes=raw, decoded_nbytes=raw)
