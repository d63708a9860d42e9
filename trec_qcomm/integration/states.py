"""NamedStates: the state of objects that are made once the model is sharded, for checkpoints.

State may be loaded before or after its object is there. State that was loaded for a name waits for
the object of that name.

Knows: names of ranks in checkpoints. Does not know: what the state means.
"""

from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from trec_qcomm.integration.checkpoint import by_rank_key, by_short_key, check_names, self_rank_key


class Stateful(Protocol):
    """Object whose state checkpoints keep."""

    def state_dict(self) -> Any:
        """Return what a resumed run needs, in a form that torch.distributed.checkpoint can hold."""

    def load_state_dict(self, state: Any) -> None:
        """Continue from a `state_dict`, or begin anew for {}. Raises ValueError at other state."""


S = TypeVar("S", bound=Stateful)


class NamedStates(Generic[S]):
    """Objects by name, and state that was loaded for names without an object.

    Args:
        key: name of all these objects in the state.
        of_rank: whether each rank has state of its own, which is not for other ranks.
    """

    def __init__(self, key: str, *, of_rank: bool = False) -> None:
        self._key, self._of_rank = key, of_rank
        self.objects: dict[str, S] = {}
        self.loaded: dict[str, Any] = {}  # for names without an object

    def __setitem__(self, name: str, stateful: S) -> None:
        """Keep the state of an object from now on. The object gets state loaded for its name."""
        self.objects[name] = stateful
        if name in self.loaded:
            stateful.load_state_dict(self.loaded.pop(name))

    def state_dict(self) -> dict[str, Any]:
        """Return {key: {name: state}}, or {} without any state.

        If `of_rank`, the rank's name stands between key and names.
        """
        made = {name: stateful.state_dict() for name, stateful in self.objects.items()}
        states = {n: state for n, state in made.items() if not isinstance(state, dict) or state}
        if not states:
            return {}
        return {self._key: {self_rank_key(): states} if self._of_rank else states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the part of `state` under the key.

        Raises: ValueError: that part is no mapping of names.
        """
        states = state.get(self._key, {})
        check_names(states, f"state: {self._key}")
        if self._of_rank:
            states = by_rank_key(by_short_key(states)).get(self_rank_key(), {})
        self.loaded = dict(states)
        for name, stateful in self.objects.items():
            stateful.load_state_dict(self.loaded.pop(name, {}))
