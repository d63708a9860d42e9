"""AutoExtension: time steps and change codecs, as a config's `auto` says.

Knows: sessions, clocks. Does not know: how the search goes.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from trec_qcomm.codecs import Identity
from trec_qcomm.comm.peers import host_group
from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.comm.rows.sequence import SequenceAllToAll
from trec_qcomm.config import TableRule
from trec_qcomm.config.tables import DIRECTIONS
from trec_qcomm.core.fields import read, write
from trec_qcomm.ext.auto.choice import EXACT, Choice
from trec_qcomm.ext.auto.rule import AutoRule
from trec_qcomm.ext.auto.search import Search, Tuned, search
from trec_qcomm.integration.current_rules import CodecChanges
from trec_qcomm.integration.extension import Extension
from trec_qcomm.integration.session import Session

_WARM = 2  # steps not timed after a change: plans are made, and a pipeline has sent ids ahead
_log = logging.getLogger("trec_qcomm")


class AutoExtension(Extension):
    """Choice of a session's codecs, and the search for it.

    Args: session: the session.  rule: the config's `auto`.
    Attributes:
        choice: the choice in force, or the one that is tried.
        is_tuning: whether a search is going on.
        tuned: result of this run's latest search; None: no search has ended.
        num_tried: number of steps that the latest search took.
    """

    def __init__(self, session: Session, rule: AutoRule) -> None:
        self._session, self._rule = session, rule
        self.choice, self.is_tuning = rule.choice or Choice(), rule.choice is None
        self.tuned: Tuned | None = None
        self.num_tried = 0
        self._search: Search | None = None
        self._step, self._chosen_at = -1, 0
        self._begun: list[float] = []  # times at which the steps of this trial began
        self._device, self._is_unpooled, self._is_applied = torch.device("cpu"), False, False
        session.state["auto"] = self

    def changes_of(self, rules: Mapping[str, TableRule]) -> Iterator[CodecChanges]:
        for candidate in self._rule.configs.values():
            by_table = {table: candidate.rule_for(table) for table in rules}
            yield {t: {d: getattr(r, d) for d in DIRECTIONS} for t, r in by_table.items()}

    def add_collective(self, collective: RowCollective, module: str) -> None:
        self._is_unpooled |= isinstance(collective, SequenceAllToAll)

    def check_tables(
        self, tables: Any, dtype: torch.dtype, device: torch.device | None = None
    ) -> None:
        self._device = device or self._device

    def check_names(self) -> None:
        if not self._session.collectives.tables():
            raise ValueError(
                f"{self._session.config.source}: auto: no rows are sent, so there are no steps to "
                "time; take a preset such as dense_float6"
            )
        if not self.is_tuning:
            self._use(self.choice)

    def check_step(self, step: int) -> None:
        """Count a step before its first rows are sent, and change codecs then."""
        if step == self._step or self._session.exact:
            return
        self._step = step
        if self.is_tuning:
            self.num_tried += 1
            self._begun.append(self._now())
            if len(self._begun) > _WARM + self._rule.steps:
                self._try_next(self._seconds())
            elif self._search is None:
                self._begin()
        elif not self._is_applied:
            self._use(self.choice)
        elif self._rule.retune_every and step - self._chosen_at >= self._rule.retune_every:
            self.is_tuning = True
            self._begin()

    def _begin(self) -> None:
        whole = self._rule.whole_choices(self._session.config, is_unpooled=self._is_unpooled)
        self._search, self.num_tried = search(whole, self._rule.options(whole)), 0
        self._try_next(None)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return perf_counter()

    def _seconds(self) -> list[float]:
        """Return the seconds of the timed steps, the mean over ranks. Collective."""
        begun = torch.tensor(self._begun[_WARM:], dtype=torch.float64)
        seconds, pg = begun.diff(), self._session.pg
        assert pg is not None
        dist.all_reduce(seconds, group=host_group(pg))
        times: list[float] = (seconds / pg.size()).tolist()
        return times

    def _try_next(self, seconds: list[float] | None) -> None:
        """Change to the next choice. Args: seconds: those of the choice that was tried."""
        assert self._search is not None
        try:
            self._use(self._search.send(seconds))  # type: ignore[arg-type]
        except StopIteration as end:
            self.tuned, self._search, self.is_tuning = end.value, None, False
            self._chosen_at = self._step
            self._use(end.value.choice)
            if dist.get_rank() == 0:
                _log.warning("%s", self.in_summary())
        self._begun = [self._now()]

    def _use(self, choice: Choice) -> None:
        session, config = self._session, self._session.config
        tables = {
            table: {d: self._codec(choice, table, d) for d in DIRECTIONS}
            for table in session.collectives.tables()
        }
        dense: Any = None
        if config.dense is not None:
            name = choice.dense
            dense = EXACT if name == EXACT else self._rule.configs[name].dense_rules
        ids = None if config.ids is None else choice.ids
        session.use_codecs(tables, dense=dense, ids=ids, bags=choice.bags)
        self.choice, self._is_applied = choice, True

    def _codec(self, choice: Choice, table: str, direction: str) -> Any:
        name = getattr(choice, direction)
        if name == EXACT:
            return Identity()
        return getattr(self._rule.configs[name].rule_for(table), direction)

    def in_summary(self) -> str:
        if self.is_tuning:
            return f"auto: trying {self.choice}"
        if self.tuned is None:
            return f"auto: {self.choice}"
        whole = self._rule.whole_choices(self._session.config, is_unpooled=self._is_unpooled)
        names = (EXACT, *self._rule.candidates)
        pairs = ((name, self.tuned.seconds[c]) for name, c in zip(names, whole, strict=True))
        compared = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in pairs)
        took = 1e3 * self.tuned.seconds[self.tuned.choice]
        return (
            f"auto: {self.tuned.choice}, after {self.num_tried} steps of trying: a step takes "
            f"{took:.1f} ms ({compared})"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return {"choice", "chosen_at"}.

        "choice" is JSON text of the choice and its number of ranks, empty before there is a choice.
        "chosen_at" is the step of the choice.
        """
        kept = "" if self.is_tuning else json.dumps([dist.get_world_size(), write(self.choice)])
        return {"choice": kept, "chosen_at": torch.tensor(self._chosen_at)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the choice of a `state_dict` of as many ranks; else begin anew."""
        if self._rule.choice is not None:
            return
        kept = json.loads(str(state.get("choice", "")) or "[0, {}]")
        self.is_tuning = kept[0] != dist.get_world_size()
        self._search, self._begun, self.tuned, self._is_applied = None, [], None, False
        self._step, self._chosen_at = -1, int(state.get("chosen_at", 0))
        if not self.is_tuning:
            self.choice = read(Choice, kept[1], "state: auto")
            if self._session.collectives.tables():
                self._use(self.choice)
