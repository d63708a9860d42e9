"""Plans: the codecs of least cost within a budget of loss, and a step back where one failed.

Knows: loss models, the allocation. Does not know: trainings, files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from trec_qcomm.control.allocation import Option, allocate, next_finer, price
from trec_qcomm.control.cost_model import FLOAT32_NBYTES, measure_throughput
from trec_qcomm.control.trials.paired import Change as PairedChange
from trec_qcomm.core.codec import Codec
from trec_qcomm.search.candidates import DIRECTIONS, Candidates, Direction
from trec_qcomm.search.choices import EXACT, Choice, Pair
from trec_qcomm.search.model import LossModel
from trec_qcomm.search.noise import Noise

Item = tuple[str, Direction]  # a table in a direction
Codecs = dict[Item, Codec]


@dataclass(frozen=True)
class Blame:
    """The codec that a step back was made from.

    Args:
        direction, codec: what some tables had.
        by_table: what each of them has instead.
        expected: expected loss of this codec on these tables, in percent.
        saved: cost that it saved against what they have instead.
    """

    direction: Direction
    codec: Codec
    by_table: Mapping[str, Codec]
    expected: float
    saved: float

    def __str__(self) -> str:
        names = ", ".join(sorted(self.by_table))
        return (
            f"{self.direction} {self.codec!r} of {len(self.by_table)} tables ({names}): expected "
            f"{self.expected:+.4f} %, which is most for each byte that it saves"
        )


@dataclass(frozen=True)
class Plan:
    """A choice of codecs for all tables.

    Args:
        name: name of the configuration.
        budget: limit in percent that its verified mean is to keep.
        choice: codecs by table.
        nbytes: bytes of rows and gradients that a rank sends in a step.
        cost: what was kept small: the bytes, or seconds.
        expected: expected loss in percent.
        error: standard error of the expected loss, that of the model's prices alone.
        verified: measured change by metric; empty where it was not verified.
        verdict: what the verification says.
        blames: steps back that led to it from the first plan of its budget.
    """

    name: str
    budget: float
    choice: Choice
    nbytes: float
    cost: float
    expected: float
    error: float
    verified: Mapping[str, PairedChange] = field(default_factory=dict)
    verdict: str = ""
    blames: tuple[Blame, ...] = ()


@dataclass(frozen=True)
class Planner:
    """Options of every table, and what is chosen of them.

    Args:
        model: expected losses.
        candidates: codecs to choose from.
        link_gb_s: GB/s that a rank sends, if seconds are to be few; None: bytes.
    """

    model: LossModel
    candidates: Candidates
    link_gb_s: float | None = None

    def cost(self, noise: Noise, codec: Codec) -> float:
        """Return the cost of a codec on a table's rows."""
        return cost_of(noise, codec, self.link_gb_s)

    def plan(self, name: str, budget: float, *, most: float) -> Plan:
        """Return the plan of least cost whose expected losses add up to `most` percent or less.

        Args: budget: limit that it is to keep when it is verified.
        """
        options = {item: list(by.values()) for item, by in self._options().items()}
        named = {"/".join(item): options[item] for item in options}
        chosen = allocate(named, most)
        codecs = {item: self._codec(item, chosen["/".join(item)]) for item in options}
        return self._make(name, budget, codecs)

    def random_plan(self, name: str, cost: float, random: Random) -> Plan:
        """Return a plan of random codecs that costs as much as another plan, within 1 %.

        Random codecs are exchanged for others, one after the other, where that brings the cost
        nearer; where it comes no nearer, it begins anew.

        Raises: ValueError: no such plan was met.
        """
        options = {item: list(by.items()) for item, by in self._options().items()}
        items = list(options)
        for _ in range(1000):
            chosen = {item: random.choice(pairs) for item, pairs in options.items()}
            total = sum(option.cost for _, option in chosen.values())
            for _ in range(10 * len(items)):
                if abs(total - cost) <= 0.01 * cost:
                    return self._make(name, 0.0, {item: chosen[item][0] for item in items})
                item = random.choice(items)
                pair = random.choice(options[item])
                changed = total + pair[1].cost - chosen[item][1].cost
                if abs(changed - cost) < abs(total - cost):
                    total, chosen[item] = changed, pair
        raise ValueError(f"{name}: no choice of the candidates costs {cost:g}")

    def has(self, pair: Pair) -> bool:
        """Return whether all tables were probed with a pair of codecs."""
        return all((*item, pair[item[1]]) in self.model.measured.noise for item in self._items)

    def all_with(self, name: str, pair: Pair, budget: float = 0.0) -> Plan:
        """Return the plan in which all tables have one pair of codecs.

        Raises: KeyError: a codec was not probed.
        """
        return self._make(name, budget, {item: pair[item[1]] for item in self._items})

    def step_back(self, plan: Plan, *, only_forward: bool = False) -> Plan | None:
        """Return the plan with the dearest codec replaced by finer ones; None if all are exact.

        The dearest codec is that of one direction, over all tables that have it, whose expected
        loss is largest for each byte (or second) that it saves against the next finer options.
        Args: only_forward: whether rows alone are to blame.
        """
        options = self._options()
        finer: dict[tuple[Direction, Codec], dict[Item, tuple[Option, Option]]] = {}
        for item in self._items:
            codec = plan.choice[item[0]][item[1]]
            chosen = options[item][codec]
            other = next_finer(list(options[item].values()), chosen)
            if other is not None and not (only_forward and item[1] == "backward"):
                finer.setdefault((item[1], codec), {})[item] = chosen, other
        if not finer:
            return None

        def joint_price(group: Mapping[Item, tuple[Option, Option]]) -> float:
            pairs = list(group.values())
            chosen, other = (
                Option("", sum(p[n].cost for p in pairs), sum(p[n].loss for p in pairs))
                for n in (0, 1)
            )
            return price(chosen, other)

        (direction, codec), group = max(finer.items(), key=lambda pair: joint_price(pair[1]))
        codecs = {item: plan.choice[item[0]][item[1]] for item in self._items}
        codecs |= {item: self._codec(item, other) for item, (_, other) in group.items()}
        blame = Blame(
            direction, codec, {table: codecs[table, d] for table, d in group},
            expected=sum(chosen.loss for chosen, _ in group.values()),
            saved=sum(other.cost - chosen.cost for chosen, other in group.values()),
        )  # fmt: skip
        made = self._make(plan.name, plan.budget, codecs)
        return Plan(**vars(made) | {"blames": (*plan.blames, blame)})

    @property
    def _items(self) -> list[Item]:
        return [(table, side) for table in self.model.measured.tables for side in DIRECTIONS]

    def _options(self) -> dict[Item, dict[Codec, Option]]:
        """Return the options of each table and direction by codec."""
        options: dict[Item, dict[Codec, Option]] = {}
        for table, direction in self._items:
            by_codec = options.setdefault((table, direction), {})
            for codec in self.candidates[direction]:
                loss = self.model.loss(table, direction, codec)
                if loss is not None:
                    noise = self.model.measured.noise[table, direction, codec]
                    by_codec[codec] = Option(repr(codec), self.cost(noise, codec), loss)
        return options

    def _codec(self, item: Item, option: Option) -> Codec:
        return next(c for c in self.candidates[item[1]] if repr(c) == option.name)

    def _make(self, name: str, budget: float, codecs: Codecs) -> Plan:
        noise = {item: self.model.measured.noise[(*item, codec)] for item, codec in codecs.items()}
        choice = {
            table: Pair(codecs[table, "forward"], codecs[table, "backward"])
            for table in self.model.measured.tables
        }
        losses = (self.model.loss(*item, codec) or 0.0 for item, codec in codecs.items())
        return Plan(
            name=name,
            budget=budget,
            choice=choice,
            nbytes=sum(each.nbytes for each in noise.values()),
            cost=sum(self.cost(noise[item], codec) for item, codec in codecs.items()),
            expected=sum(losses),
            error=self.model.error(choice),
        )


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
