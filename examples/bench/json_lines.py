"""Records of measurements, one JSON object a line, as the tools here append and read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read(path: Path) -> list[dict[str, Any]]:
    """All records; none where there is no file. Raises ValueError: a line that is none."""
    found = []
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else (), start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: {error}; take it away to go on") from error
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number}: no record; take it away to go on")
        found.append(record)
    return found
