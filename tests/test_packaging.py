"""The wheel: configs/ travels in it as presets, and a program finds them without the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import trec_qcomm
from trec_qcomm.config import load_preset

ROOT = Path(__file__).parents[1]
PRESETS = trec_qcomm.presets()
LOAD = """
import trec_qcomm
print(trec_qcomm.__file__)
print(*trec_qcomm.presets())
print(trec_qcomm.QComm.from_preset("best").config)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build it from a copy: setuptools writes beside its sources."""
    copy = tmp_path_factory.mktemp("source")
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in ("trec_qcomm", "configs"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    (copy / "dist").mkdir()
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, capture_output=True)
    (path,) = (copy / "dist").iterdir()
    return path


def test_a_wheel_has_every_config_and_every_module(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    presets = [name for name in names if name.startswith("trec_qcomm/presets/")]
    assert set(presets) == {f"trec_qcomm/presets/{name}.yaml" for name in PRESETS}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "trec_qcomm").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert wheel.name.startswith(f"trec_qcomm-{trec_qcomm.__version__}-")


def test_an_installed_wheel_loads_presets_without_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    packages = Path(torch.__file__).parents[1]  # PYTHONPATH reads no .pth, so not the checkout
    path = os.pathsep.join([str(tmp_path), str(packages)])
    command = [sys.executable, "-S", "-c", LOAD]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
    )
    file, presets, config = done.stdout.splitlines()
    assert Path(file).is_relative_to(tmp_path)
    assert tuple(presets.split()) == PRESETS
    assert config == repr(load_preset("best"))
