"""What the commands of the benches share: a parser, checked numbers, records to go on from."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import torch

from trec_qcomm.lab import records
from trec_qcomm.lab.records import Environment, Record, Scalar

INTERRUPTED = 130  # exit status after Ctrl-C
RecordT = TypeVar("RecordT", bound=Record)


def build_parser(description: str | None, *, out: str | None = None) -> argparse.ArgumentParser:
    """Return a parser that shows the description as it is written, and has --out.

    Args: out: default file of records; None: none are written.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    told = "append the records to this file" + (f" (default {out})" if out else "")
    parser.add_argument("--out", type=Path, default=out, metavar="FILE", help=told)
    return parser


def positive(text: str) -> int:
    """Return a number of an option. Raises argparse.ArgumentTypeError: it is below 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected at least 1")
    return int(text)


def fraction(text: str) -> float:
    """Return a fraction. Raises argparse.ArgumentTypeError: it does not lie between 0 and 1."""
    if not 0 < float(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected more than 0 and less than 1")
    return float(text)


def read_so_far(path: Path, kind: type[RecordT]) -> list[RecordT]:
    """Return the records of a file that may not be there yet.

    Raises: ValueError: a line that is no record of this kind; it names file and line.
    """
    read = records.read(path) if path.exists() else []
    kept = [record for record in read if isinstance(record, kind)]
    for record in read:
        if not isinstance(record, kind):
            raise ValueError(f"{record.origin}: a record of kind {record.kind}, not {kind.kind}")
    return kept


def device_environment(device: torch.device, packages: Iterable[str] = ()) -> Environment:
    """Return commit, versions and machine of a bench on a GPU, or on a CPU in its place."""
    hardware: dict[str, str | int | float] = {"gpu": "none"}
    if device.type == "cuda":
        hardware = {"gpu": torch.cuda.get_device_name(device)}
        hardware["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return Environment.current((*records.PACKAGES, "triton", *packages), hardware=hardware)


def show(name: str, figures: Mapping[str, Scalar]) -> None:
    """Print a line of figures as soon as it is measured."""
    print("  ".join([name, *(f"{key} {value}" for key, value in figures.items())]), flush=True)
