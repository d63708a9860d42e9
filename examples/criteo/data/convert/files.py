"""Files that are there whole or not at all, in the folder of what is not finished.

Knows: names, renames. Does not know: what is in them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def save_array(file: Path, array: NDArray[Any]) -> None:
    """Write a .npy file, which gets its name when it is whole."""
    unfinished = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    with unfinished.open("wb") as out:
        np.save(out, array)
    unfinished.replace(file)


def save_json(file: Path, content: dict[str, Any]) -> None:
    """Write a JSON file, which gets its name when it is whole."""
    unfinished = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    unfinished.write_text(json.dumps(content, indent=1) + "\n")
    unfinished.replace(file)


@dataclass(frozen=True)
class Part:
    """The lines of one file that start in one stretch of its text.

    Args: file: number of the file.  index: number of the stretch in it.
    """

    file: int
    index: int

    def at(self, work: Path, suffix: str) -> Path:
        """Return the file of this part in the folder of what is not finished."""
        return work / f"file_{self.file}_part_{self.index}_{suffix}"

    def told(self, work: Path) -> dict[str, Any] | None:
        """Return what is known of the part; None before it is read."""
        file = self.at(work, "told.json")
        return json.loads(file.read_text()) if file.exists() else None
