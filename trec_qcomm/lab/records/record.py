"""Record: fields that every measurement has, such as the environment, and the known kinds."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Literal

PACKAGES = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy")
Scalar = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Commit, versions and machine of a measurement. A field is None if it is unknown.

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
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


@dataclass(frozen=True)
class Origin:
    """Line from which a record was read. Args: file: path of the file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measurement, one line of JSON. A subclass is a kind of record and names it.

        @dataclass(frozen=True, kw_only=True)
        class LatencyRecord(Record, kind="latency"):
            latency_s: float

    Args:
        version: version of the schema.
        configuration: name of what was measured, such as "best" or "stock".
        config: YAML text of its config; None without one, as for plain TorchRec.
        setup: exactly the settings that must be equal for two measurements to be compared. The
            measuring program chooses the names. Titles show batch_size, embedding_dim and
            dense_optimizer if they are there.
        seed: seed of the random numbers.
        environment: commit, versions, machine; None if they are unknown.
        time: seconds since 1970 at the end of the measurement.
        choice: what the config's `auto` chose, in words; None without `auto`.
        origin: the line from which it was read; no part of the JSON.
    """

    kind: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type[Record]]] = {}

    version: Literal[1] = 1
    configuration: str
    config: str | None = None
    setup: Mapping[str, Scalar] = field(default_factory=dict)
    seed: int = 0
    environment: Environment | None = None
    time: float | None = None
    choice: str | None = None
    origin: Origin | None = field(
        default=None, compare=False, repr=False, metadata={"stored": False}
    )

    def __init_subclass__(cls, kind: str, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.kinds.get(kind, cls).__qualname__ != cls.__qualname__:
            raise ValueError(f"kind {kind!r}: is already {cls.kinds[kind].__qualname__}")
        cls.kind = kind
        cls.kinds[kind] = cls

    @property
    def setup_key(self) -> tuple[tuple[str, Scalar], ...]:
        """Setup as a sorted tuple, to compare and to group by."""
        return tuple(sorted(self.setup.items()))


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """20th, 50th and 80th percentile of repeated measurements."""

    p20: float
    p50: float
    p80: float


@dataclass(frozen=True, kw_only=True)
class TrafficBytes:
    """Bytes that a rank sends to other ranks in a step, counted three times.

    Args:
        raw_nbytes: float32 bytes of all rows, before equal bags are merged; None if not counted.
        distinct_nbytes: float32 bytes of the rows that are sent; None if not counted.
        wire_nbytes: bytes that the collectives are given, headers included.
    """

    raw_nbytes: float | None = None
    distinct_nbytes: float | None = None
    wire_nbytes: float


TrafficByKind = Mapping[str, TrafficBytes]  # by kind of traffic, see TRAFFIC_KINDS
