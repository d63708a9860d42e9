"""TorchRec's names stand in `integration.compat` alone, the private ones in `compat.private`.

The check reads the source. A private attribute (`x._name`, also in getattr and setattr) must be
defined by our own code: in the same file, or in a module of ours that the file imports.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "trec_qcomm"
COMPAT = PACKAGE / "integration" / "compat"
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if COMPAT not in path.parents]
OF_TORCH = PACKAGE / "lab" / "ranks" / "process_group.py"  # torch's private names
OPERATORS = "_foreach_"  # torch's own, over lists of tensors
# torch's own, of process groups
BACKEND = {"_device_types", "_get_backend", "_timeout", "_world"}
NODES = {"_set_sequence_nr"}  # torch's own, of autograd
OVERRIDDEN = {"_wait_impl", "_dedup_indices", "_create_input_dists"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line number, name) of every private attribute that is read or written."""
    for node in ast.walk(tree):
        name = None
        if isinstance(node, ast.Attribute):
            name = node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "setattr", "hasattr")
            and len(node.args) > 1
        ):
            name = getattr(node.args[1], "value", None)  # a literal's
        if isinstance(name, str) and is_private(name):
            yield node.lineno, name


@cache
def definitions(path: Path) -> set[str]:
    """Return the private names that a file's functions, classes and `self` define."""
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return {name for name in names if is_private(name)}


def imported_files(tree: ast.Module) -> Iterator[Path]:
    """Yield the files of the package that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trec_qcomm."):
            assert node.module is not None
            place = PACKAGE.joinpath(*node.module.split(".")[1:])
            yield place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def foreign_uses(path: Path) -> list[str]:
    """Return "line: name" of each private attribute that no code of ours defines."""
    tree = parsed(path)
    known = definitions(path) | BACKEND | NODES | OVERRIDDEN
    for other in imported_files(tree):
        if COMPAT not in other.parents:
            known |= definitions(other)
    return [
        f"{line}: {name}"
        for line, name in private_uses(tree)
        if name not in known and not name.startswith(OPERATORS)
    ]


def test_private_attributes_of_torchrec_are_read_in_compat_alone():
    files = [path for path in FILES if path != OF_TORCH]
    uses = {str(path.relative_to(PACKAGE)): foreign_uses(path) for path in files}
    assert {path: lines for path, lines in uses.items() if lines} == {}


def imports_torchrec(path: Path) -> bool:
    nodes = list(ast.walk(parsed(path)))
    names = [a.name for node in nodes if isinstance(node, ast.Import) for a in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return any(name.split(".")[0] == "torchrec" for name in names)


def test_torchrec_is_imported_in_compat_alone():
    assert [str(path.relative_to(PACKAGE)) for path in FILES if imports_torchrec(path)] == []


def test_every_name_of_compat_is_used():
    tree = parsed(COMPAT / "__init__.py")
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level == 0]
    named = {alias.asname or alias.name for node in imports for alias in node.names}
    used = set()
    for path in (*FILES, COMPAT / "private.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module == "trec_qcomm.integration.compat":
                used |= {alias.name for alias in node.names}
    assert named - used == {"distributions"}  # which says what is installed


def test_packages_that_do_not_belong_together_are_named(tmp_path):
    (tmp_path / "torchrec").mkdir()
    (tmp_path / "torchrec" / "__init__.py").write_text("")  # a TorchRec that lacks what we use
    command = [sys.executable, "-c", "import trec_qcomm.integration.compat"]
    path = {"PYTHONPATH": f"{tmp_path}:{PACKAGE.parent}"}
    ended = subprocess.run(command, env=os.environ | path, capture_output=True, text=True)
    assert "; torch 2.N needs torchrec and fbgemm-gpu 1.(N - 5)" in ended.stderr
