"""NamedStates: what checkpoints keep of objects that are made once the model is sharded.

State may be loaded before or after an object of its name is there: what was loaded for a name waits
for its object.

Knows: names of ranks in checkpoints. Does not know: whose state it is.
"""

from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from trec_qcomm.integration.checkpoint import (
    by_rank_key,
    by_short_key,
    check_names,
    self_rank_key,
)


class Stateful(Protocol):
    """Thing whose state checkpoints keep."""

    def state_dict(self) -> Any:
        """Return what a resumed run needs, as torch.distributed.checkpoint can hold it."""

    def load_state_dict(self, state: Any) -> None:
        """Continue from a `state_dict`; {}: begin anew. Raises ValueError: no such state."""


S = TypeVar("S", bound=Stateful)


class NamedStates(Generic[S]):
    """Objects by name, and what was loaded for names that nobody has yet.

    Args:
        key: name of all of them in the state.
        of_rank: whether each rank has state of its own, which is not for other ranks.
    """

    def __init__(self, key: str, *, of_rank: bool = False) -> None:
        self._key, self._of_rank = key, of_rank
        self.objects: dict[str, S] = {}
        self.loaded: dict[str, Any] = {}  # for names without an object

    def __setitem__(self, name: str, stateful: S) -> None:
        """Keep the state of an object from now on; it gets what was loaded for its name."""
        self.objects[name] = stateful
        if name in self.loaded:
            stateful.load_state_dict(self.loaded.pop(name))

    def state_dict(self) -> dict[str, Any]:
        """Return {key: {name: state}}, with the rank's name in between where ranks differ; {}:
        there is no state."""
        made = {name: stateful.state_dict() for name, stateful in self.objects.items()}
        states = {n: state for n, state in made.items() if not isinstance(state, dict) or state}
        if not states:
            return {}
        return {self._key: {self_rank_key(): states} if self._of_rank else states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, of which only what is under the key is read.

        Raises: ValueError: it is no mapping of names.
        """
        states = state.get(self._key, {})
        check_names(states, f"state: {self._key}")
        if self._of_rank:
            states = by_rank_key(by_short_key(states)).get(self_rank_key(), {})
        self.loaded = dict(states)
        for name, stateful in self.objects.items():
            stateful.load_state_dict(self.loaded.pop(name, {}))
