"""Files that the documents name exist, and docstrings become lists on the API pages."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "trec_qcomm"
PAGES = (
    "README.md", "CONTRIBUTING.md", "configs/README.md", "configs/REFERENCE.md",
    "trec_qcomm/README.md", "trec_qcomm/docs/GUIDE.md", "trec_qcomm/docs/FAQ.md",
    "trec_qcomm/docs/TRAINING.md", "trec_qcomm/docs/QUALITY.md", "trec_qcomm/docs/DEBUGGING.md",
    "trec_qcomm/docs/GUARD.md", "trec_qcomm/docs/SAVINGS.md", "trec_qcomm/docs/LIBRARIES.md",
    "trec_qcomm/docs/EXTENDING.md", "trec_qcomm/docs/REPLICAS.md",
)  # fmt: skip
FOLDERS = (
    ROOT, PACKAGE, PACKAGE / "integration", PACKAGE / "integration" / "embedding",
    PACKAGE / "ext", PACKAGE / "wire", PACKAGE / "comm" / "rows", ROOT / "configs",
    ROOT / "configs" / "plans",
    ROOT / "examples" / "bench", ROOT / "examples" / "criteo",
    ROOT / "examples" / "criteo" / "studies",
    ROOT / "tests" / "integration" / "embedding",
)  # fmt: skip
NAMED = re.compile(r"(?<![\w/.*:])((?:[a-z_]+/)*[A-Za-z_]+\.(?:py|md|yaml))(?![\w*])")
OF_A_USER = {"my.yaml"}
OF_EVERY_OP = {"reference.py", "cpu.py", "gpu.py"}


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    folders = (*FOLDERS, (ROOT / page).parent)
    named = {name for name in NAMED.findall(text) if "NAME" not in name}
    named -= OF_A_USER | OF_EVERY_OP
    missing = [name for name in sorted(named) if not any((f / name).exists() for f in folders)]
    assert missing == []


def test_sections_of_a_docstring_become_lists():
    path = ROOT / ".docs" / "docstrings.py"
    spec = importlib.util.spec_from_file_location("docstrings", path)
    assert spec is not None
    assert spec.loader is not None
    docstrings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docstrings)
    docstring = """Encode rows.

Args: rows: [n, D] float32, contiguous
    rows.  bits: 1..8.
Returns: [n] bytes: all of them.

Last words.
"""
    assert docstrings.to_markdown(docstring).split("\n") == [
        *["Encode rows.", "", "", "**Args:**", ""],
        *["- `rows`: [n, D] float32, contiguous", "    rows.", "- `bits`: 1..8."],
        *["", "**Returns:**", "", "[n] bytes: all of them.", "", "Last words."],
    ]
