"""AutoRule: the candidates that a tuning tries, for how long, and when it tries again.

Knows: configs by name. Does not know: sessions, times.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

from trec_qcomm.config import Config
from trec_qcomm.config.files import read_config
from trec_qcomm.config.gradients import GradientRule
from trec_qcomm.config.section import Section
from trec_qcomm.config.tables import DIRECTIONS
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.fields import Range, check_fields
from trec_qcomm.ext.auto.choice import EXACT, Choice, choice_of, options


@dataclass(frozen=True, kw_only=True)
class AutoRule(Section):
    """Settings of `auto`, which measures on the model and network at hand and takes the fastest.

    In the first steps of a training it times TorchRec alone and each candidate. Then it times rows,
    gradients, dense gradients, ids and distinct bags separately. All ranks change at the same step,
    by the mean of their seconds. Checkpoints keep the choice. It does not hold for DATA_PARALLEL
    tables, which follow the config's `data_parallel`, nor for `compress_ddp`, which takes `dense`
    as it stands.

    Args:
        candidates: names of presets or paths of configs, the finest first, whose rules may be
            chosen. Take configs that passed your quality gate. `exact`, TorchRec alone, is always a
            candidate. A candidate's dense rules and packed ids count only if the config has `dense`
            and `ids`, its distinct bags only if the config's `unique_bags` allows them.
        pooled_only: candidates whose codecs of rows are only for pooled rows. A model with unpooled
            rows gets the codecs of the candidate before. On sequences `best` loses more than the
            limit, and in long trainings so does `fast` (examples/sequences/README.md).
        steps: number of steps that are timed at once with one choice, after two untimed steps.
        retune_every: number of steps after which it tries again; 0: never. It also tries again if
            the number of ranks changes.
        choice: settings to use without trying, such as {dense: fast, bags: distinct}.
    """

    candidates: Sequence[str] = ("int8", "fast", "best")
    pooled_only: Sequence[str] = ("fast", "best")
    steps: Annotated[int, Range(1)] = 4
    retune_every: Annotated[int, Range(0)] = 0
    choice: Choice | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        assert self.configs is not None  # raises where there is no such config
        for part in ("forward", "backward", "dense"):
            name = EXACT if self.choice is None else getattr(self.choice, part)
            if name not in (EXACT, *self.candidates):
                allowed = ", ".join((EXACT, *self.candidates))
                raise ValueError(f"choice.{part}: {name!r} is not one of {allowed}")

    @cached_property
    def configs(self) -> dict[str, Config]:
        """Configs of the candidates by name."""
        return {name: read_config(name) for name in self.candidates}

    def whole_choices(self, config: Config, *, is_unpooled: bool) -> list[Choice]:
        """Return TorchRec alone and the candidates, as far as a config lets them be chosen.

        Args: config: the config that has this section.  is_unpooled: whether rows are unpooled.
        """
        made = [Choice()]
        for name in self.candidates:
            choice = choice_of(name, self.configs[name], config)
            if is_unpooled and name in self.pooled_only:
                before = made[-1]
                choice = replace(choice, forward=before.forward, backward=before.backward)
            made.append(choice)
        return made

    def options(self, choices: Sequence[Choice]) -> dict[str, list[str]]:
        """Return the different settings of each part of some choices, the finest first."""
        return options(choices, self.configs)

    def in_short(self) -> str:
        return str(self.choice) if self.choice else " or ".join((EXACT, *self.candidates))

    def check(self, owner: Any) -> None:
        if not owner.embedding:
            raise ValueError("auto: has nothing to choose without rules of embedding; add one")
        if owner.guard is not None:
            raise ValueError("auto: guard chooses codecs, too; allowed: one of them")

    def codecs_of_table(self, rule: Any) -> Iterator[tuple[str, Codec]]:
        for candidate in self.configs.values():
            for of_tables in candidate.embedding:
                yield from ((d, getattr(of_tables, d)) for d in DIRECTIONS)

    def dense_rules(self) -> Iterator[GradientRule]:
        for candidate in self.configs.values():
            yield from candidate.dense_rules

    def extension(self, session: Any) -> Any:
        from trec_qcomm.ext.auto.extension import AutoExtension  # which needs rules itself

        return AutoExtension(session, self)
