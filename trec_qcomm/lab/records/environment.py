"""The environment of a measurement: commit, versions, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Commit, versions and machine of a measurement. A field is None where it is not known.

    Args:
        commit: `git describe` of the code that measured.
        versions: version of each package, and of python.
        hardware: parts of the machine, such as cpu, num_cpus and gpu.
        omp_num_threads: the variable OMP_NUM_THREADS.
    """

    commit: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, str | int | float] = field(default_factory=dict)
    omp_num_threads: str | None = None

    @classmethod
    def current(
        cls,
        packages: Iterable[str] = PACKAGES,
        *,
        repository: str | Path | None = None,
        hardware: Mapping[str, str | int | float] | None = None,
    ) -> Environment:
        """Return the environment of this process.

        Args:
            packages: names of distributions; those that are not installed are left out.
            repository: a folder in the git checkout that measures; default the working directory.
            hardware: more about the machine, such as {"gpu": "H100"}.
        """
        machine: dict[str, str | int | float] = {
            "cpu": platform.machine(),
            "num_cpus": os.cpu_count() or 1,
        }
        return cls(
            commit=_commit(Path.cwd() if repository is None else Path(repository)),
            versions={"python": platform.python_version()} | _versions(packages),
            hardware=machine | dict(hardware or {}),
            omp_num_threads=os.environ.get("OMP_NUM_THREADS"),
        )


def _commit(folder: Path) -> str | None:
    """Return what git calls the commit of a folder; None without git, or outside a checkout."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _versions(packages: Iterable[str]) -> dict[str, str]:
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
