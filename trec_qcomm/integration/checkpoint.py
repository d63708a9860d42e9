"""Checkpoints of another world size, which torch.distributed.checkpoint does not load by itself.

It loads only the names that a rank asks for, and each rank saved its gradient state under names of
its own. Here a rank asks for the names of all ranks that wrote the checkpoint.

Knows: torch.distributed.checkpoint. Does not know: what the state means.
"""

from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load


def load_of_all_ranks(checkpoint_id: str | Path, key: str) -> dict[str, Any]:
    """Load everything under `key` in a checkpoint, nested as it was saved. Collective.

    Raises: ValueError: there is nothing of that name.
    """
    metadata = FileSystemReader(checkpoint_id).read_metadata()
    wanted: dict[str, torch.Tensor] = {}
    for name, stored in metadata.state_dict_metadata.items():
        if name.startswith(f"{key}.") and isinstance(stored, TensorStorageMetadata):
            wanted[name] = torch.empty(stored.size, dtype=stored.properties.dtype)
    if not wanted:
        raise ValueError(f"{checkpoint_id}: nothing is saved under {key!r}")
    load(wanted, checkpoint_id=checkpoint_id)
    state: dict[str, Any] = {}
    for name, tensor in wanted.items():
        path = metadata.planner_data[name][1:]
        place = state
        for step in path[:-1]:
            place = place.setdefault(step, {})
        place[path[-1]] = tensor
    return state
