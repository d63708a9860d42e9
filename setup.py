"""Packages of the wheel: those below trec_qcomm/, and configs/ as trec_qcomm.presets.

All else stands in pyproject.toml, which has no way to say that a package lies in another folder
and to look for the others by itself.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["trec_qcomm*"]), "trec_qcomm.presets"],
    package_dir={"trec_qcomm.presets": "configs"},
)
