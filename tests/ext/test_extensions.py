"""An extension is imported when a config names it or one of its frames arrives, and not before.

Programs are forked from a server that has imported trec_qcomm.qcomm, and so no extension.
"""

import sys
from importlib import import_module
from typing import get_args, get_type_hints

import pytest

from tests.commands import run
from trec_qcomm import Config, GradientRule, TableRule
from trec_qcomm.config.section import At, Section
from trec_qcomm.core import registry
from trec_qcomm.qcomm import TOOLS

PROGRAM = """
import sys
import trec_qcomm
from trec_qcomm.core import registry
{first}
def loaded():
    return [name for name in sys.modules if name.startswith("trec_qcomm.ext.")]
assert not loaded(), loaded()
{then}
assert "trec_qcomm.ext.{name}" in loaded(), loaded()
"""


@pytest.mark.parametrize(
    ("name", "first", "then"),
    [
        ("dct", "registry.codec_names(); trec_qcomm.load_preset('int8')", "trec_qcomm.TopK"),
        ("dct", "import trec_qcomm.qcomm", "trec_qcomm.load_preset('papers/dct')"),
        ("dct", "", "assert registry.decoder(10).name == 'threshold'"),
    ],
)
def test_it_is_imported_when_it_is_named(name, first, then):
    program = PROGRAM.format(name=name, first=first, then=then)
    run([sys.executable, "-c", program], check=True)


def test_its_names_and_wire_ids_are_taken():
    program = """
from trec_qcomm import Identity, register_codec
for name, wire_id in (("topk", 200), ("mine", 10)):
    kind = type("Mine", (Identity,), {"name": name, "wire_id": wire_id})
    try:
        register_codec(kind, kind())
    except ValueError as error:
        assert "is taken" in str(error)
    else:
        raise AssertionError(name)
"""
    run([sys.executable, "-c", program], check=True)


def test_a_codec_of_another_package_is_imported_when_a_config_names_it(tmp_path):
    """An installed package has such an entry point."""
    about = tmp_path / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "entry_points.txt").write_text("[trec_qcomm.codecs]\ntheirs = theirs\n")
    (tmp_path / "theirs.py").write_text("""
from trec_qcomm import Identity, register_codec
Theirs = type("Theirs", (Identity,), {"name": "theirs", "wire_id": 240, "__module__": "theirs"})
register_codec(Theirs, Theirs())
""")
    program = """
from trec_qcomm.config.files import read_config
from trec_qcomm.core.registry import codec_names, decoder
assert "theirs" in codec_names() and "theirs" not in sys.modules
config = read_config({"dense": {"codec": {"codec": "theirs"}}})
assert type(config.dense.codec).__module__ == "theirs" and decoder(240).name == "theirs"
"""
    begin = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    run([sys.executable, "-c", begin + program], check=True)


def test_a_training_with_a_preset_imports_no_extension_and_no_tool():
    program = """
import sys
import trec_qcomm
qcomm = trec_qcomm.QComm.from_preset("best")
loaded = [n for n in sys.modules if n.startswith(("trec_qcomm.ext", "trec_qcomm.lab"))]
assert loaded == [], loaded
assert callable(qcomm.preview)
assert "trec_qcomm.lab.preview.live" in sys.modules
"""
    run([sys.executable, "-c", program], check=True)


def test_names_of_modules_in_the_core_are_right():
    for name, module in TOOLS.items():
        assert callable(getattr(import_module(module), name))
    hints = [
        hint
        for owner in (Config, TableRule, GradientRule)
        for hint in get_type_hints(owner, include_extras=True).values()
    ]
    rules = [rule for h in hints for part in get_args(h) for rule in get_args(part)]
    kinds = [rule.section_type() for rule in rules if isinstance(rule, At)]
    assert len(kinds) == 9
    assert all(issubclass(kind, Section) for kind in kinds)
    for module, (names, _) in registry._MODULES.items():
        import_module(module)
        assert {registry._BY_NAME[name].__module__ for name in names} == {module}
