"""The example is a folder of scripts that import one another by name; the tests do the same."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "criteo"
MODULES = "|".join(path.stem for path in FOLDER.glob("*.py"))
sys.path.insert(0, str(FOLDER))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(rf"error:::({MODULES})$"))
