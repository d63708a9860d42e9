"""Load checkpoints of another world size or config, and refuse state that does not fit.

torch.distributed.checkpoint (DCP) loads only the names that a rank asks for, and each rank saves
its gradient state under names of its own. Functions here ask for the names of all ranks that wrote
the checkpoint. Each state holds the config with which it was trained.

Knows: DCP, configs. Does not know: what the state means.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trec_qcomm.config import Config
from trec_qcomm.config.differences import changes_of, config_text, text_of_changes

CONFIG = "config"  # name of the config's text in a state
# DCP's error for a name that a checkpoint lacks shows nothing but the name.
_HINT = " (another number of ranks or config: load_resized)"
_BEGUN_ANEW = ("params", "row_residuals", "merge_pauses", "thresholds", "state")  # see below
_RANK_KEY = re.compile(r"rank\d+of\d+")


def rank_key(rank: int, world_size: int) -> str:
    """Return a name for state of one rank alone, because DCP stores equal names of all ranks once.

    The name ends with advice, which DCP's error "Missing key" shows if a checkpoint lacks the name.
    """
    return f"rank{rank}of{world_size}{_HINT}"


def self_rank_key() -> str:
    """Return the name for state of this rank alone."""
    return rank_key(dist.get_rank(), dist.get_world_size())


def by_short_key(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return state by names of ranks such as rank0of4. Raises ValueError at other names."""
    short = {str(key).removesuffix(_HINT): value for key, value in state.items()}
    check_names(short, "state of ranks", [key for key in short if _RANK_KEY.fullmatch(key)])
    return short


def by_rank_key(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return state under the names of `rank_key`: the inverse of `by_short_key`."""
    return {f"{key}{_HINT}": value for key, value in state.items()}


def check_names(
    state: object, what: str, known: Sequence[str] | None = None, needed: str | None = None
) -> None:
    """Raise ValueError unless `state` is a mapping of known names that has the needed name.

    Args: what: beginning of the error's message.  known: allowed names; None: all.  needed: a name
        that must be there.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"{what}: expected what state_dict() returned, got {state!r:.80}")
    unknown = [str(name) for name in state if known is not None and name not in known]
    if unknown or (needed is not None and needed not in state):
        fault = f"{needed} is missing" if not unknown else f"unknown: {', '.join(unknown)}"
        names = ", ".join(known or ()) or "rank0of1, ..."
        raise ValueError(f"{what}: {fault}; expected what state_dict() returned: {names}")


def with_config(state: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Return the state of a run, with the text of the config with which it is trained."""
    return dict(state) | {CONFIG: config_text(config)}


def without_config(
    state: Mapping[str, Any], config: Config, *, allow_changed_config: bool
) -> dict[str, Any]:
    """Return the state of a run without its config, after a check that the config is the same.

    If a changed config is allowed and the config changed, error bounds and thresholds are found
    anew, residuals of rows are forgotten, and extensions begin anew.

    Raises: ValueError: the state is of another config; the error names what has changed.
    """
    check_names(state, "state")
    state = dict(state)
    if CONFIG not in state:  # made by hand
        return state
    changes = changes_of(state.pop(CONFIG), config)
    if not changes:
        return state
    if not allow_changed_config:
        raise ValueError(
            f"{config.source}: the state is of another config: {text_of_changes(changes)}; to go "
            "on with the new one: load_resized(folder, allow_changed_config=True)"
        )
    return _without(state, _BEGUN_ANEW)


def _without(state: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {
        key: _without(value, names) if isinstance(value, Mapping) else value
        for key, value in state.items()
        if key not in names
    }


def load_of_all_ranks(checkpoint_id: str | Path, key: str) -> dict[str, Any]:
    """Load everything under `key` in a checkpoint, nested as it was saved. Collective.

    Raises: ValueError: the checkpoint has nothing under that name.
    """
    # A third of what `import trec_qcomm` would take, and few resume with other ranks.
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    loaded = _load_state_dict_from_keys(key, checkpoint_id=checkpoint_id)
    if key not in loaded:
        raise ValueError(f"{checkpoint_id}: nothing is saved under {key!r}; give the saved name")
    state: dict[str, Any] = loaded[key]
    return state


class Resumable:
    """Base of objects that users save in checkpoints and load with another number of ranks."""

    load_state_dict: Callable[..., None]

    def load_resized(
        self,
        checkpoint_id: str | Path,
        *,
        key: str = "trec_qcomm",
        allow_changed_config: bool = False,
    ) -> None:
        """Continue from a checkpoint of another number of ranks, or another config. Collective.

            dcp.load({"model": model_state}, checkpoint_id=folder)    # without this object's state
            qcomm.load_resized(folder)

        Steps go on. The config's `on_resize` says what happens to residuals of dense gradients.
        Error bounds and thresholds are found anew.

        Args:
            checkpoint_id: folder of the checkpoint.
            key: name under which this object was saved.
            allow_changed_config: whether the checkpoint may be of another config.

        Raises: ValueError: nothing was saved under the key, or the state is of another model or
            config.
        """
        state = load_of_all_ranks(checkpoint_id, key)
        self.load_state_dict(state, allow_changed_config=allow_changed_config)
