"""Warnings that the example's own modules cause are errors, as those of the package are."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "criteo"
MODULES = "|".join(path.stem for path in FOLDER.iterdir())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(rf"error:::({MODULES})(\.|$)"))
