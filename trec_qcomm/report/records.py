"""Records: lines of JSON, each of one measurement, and what kind of measurement it is.

Knows: the fields by which kinds are told apart, and those that figures cannot do without.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# By kind of record: the fields that it must have, and what they are. A dot goes one level down.
_FIELDS: dict[str, dict[str, type]] = {
    "training": {
        "options": dict, "options.config": str, "step": int, "metrics": dict, "losses": list,
        "world_size": int,
    },
    "progress": {"step": int},
    "network": {
        "way": str, "hosts": int, "rate": str, "options": dict, "num_steps": int,
        "sent_nbytes": list, "step_s.p20": float, "step_s.p50": float, "step_s.p80": float,
        "metrics.ne": float, "losses": list,
    },
    "study": {"config": str, "seed": int, "config_sha256": str, "options": dict},
    "codec": {
        "name": str, "ours": bool, "kind": str, "dim": int, "threads": int, "ratio": float,
        "encode_gb_s.p20": float, "encode_gb_s.p50": float, "encode_gb_s.p80": float,
        "decode_gb_s.p20": float, "decode_gb_s.p50": float, "decode_gb_s.p80": float,
    },
    "validation": {
        "way": str, "hosts": int, "rate": str, "predicted_s": float, "measured_s": float,
        "fitted": bool,
    },
    "scale": {
        "way": str, "num_gpus": int, "plan": str, "network_gbit_s": float, "step_s": float,
        "communication_share": float,
    },
    "break_even": {"way": str, "num_gpus": int, "plan": str},
}  # fmt: skip
_SIMULATIONS = ("validation", "scale", "break_even")
_NAMES = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}


@dataclass(frozen=True)
class Record:
    """One line. Args: kind: a key of _FIELDS.  fields: as in the file.  file: its name."""

    kind: str
    fields: Mapping[str, Any]
    file: str
    line: int

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or the default where it is absent or null."""
        value = self.fields.get(name)
        return default if value is None else value


def read_all(places: Iterable[Path]) -> list[Record]:
    """All records of files and of the *.jsonl files in folders, in the order given.

    Raises: ValueError: nothing there, or a line that is no record that is known; it names the file
        and the line.
    """
    found: list[Record] = []
    for path in _files(places):
        found += read(path)
    if not found:
        raise ValueError("the files hold no record")
    return found


def read(path: Path) -> list[Record]:
    """The records of one file. Raises ValueError as read_all."""
    records = []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            records.append(_record(line, path, number))
    return records


def _files(places: Iterable[Path]) -> list[Path]:
    files: dict[Path, Path] = {}  # one that is given twice counts once
    for place in places:
        if not place.exists():
            raise ValueError(f"{place}: no such file or folder")
        inside = sorted(place.rglob("*.jsonl")) if place.is_dir() else [place]
        if not inside:
            raise ValueError(f"{place}: no *.jsonl in this folder")
        for file in inside:
            files.setdefault(file.resolve(), file)
    return list(files.values())


def _record(line: str, path: Path, number: int) -> Record:
    where = f"{path}, line {number}"
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error}); was it cut short?") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: expected an object, got {type(fields).__name__}")
    kind = kind_of(fields)
    if kind is None:
        names = ", ".join(list(fields)[:8]) or "none"
        raise ValueError(f"{where}: not a record that is known, by its fields: {names}")
    for name, expected in _FIELDS[kind].items():
        _check(fields, name.split("."), expected, f"{where}, {name}, of a {kind} record")
    _check_parts(kind, fields, where)
    return Record(kind, fields, path.name, number)


def kind_of(fields: Mapping[str, Any]) -> str | None:
    """The kind of record that has these fields; None where there is none."""
    if "bench" in fields:
        return "codec" if fields["bench"] == "codec" else None
    if "simulate" in fields:
        return fields["simulate"] if fields["simulate"] in _SIMULATIONS else None
    if {"way", "sent_nbytes", "step_s"} <= fields.keys():
        return "network"
    if {"config", "seed", "config_sha256"} <= fields.keys():
        return "study"
    kinds = {"final": "training", "progress": "progress", "interrupted": "progress"}
    return kinds.get(str(fields.get("kind"))) if "step" in fields else None


def _check(fields: Any, path: Sequence[str], expected: type, where: str) -> None:
    for name in path:
        if not isinstance(fields, Mapping) or name not in fields:
            raise ValueError(f"{where}: missing")
        fields = fields[name]
    is_number = expected is float and isinstance(fields, int) and not isinstance(fields, bool)
    is_flag = expected is int and isinstance(fields, bool)
    if is_flag or not (is_number or isinstance(fields, expected)):
        what = _NAMES.get(expected, f"a {expected.__name__}")
        raise ValueError(f"{where}: expected {what}, got {fields!r:.60}")


def _check_parts(kind: str, fields: Mapping[str, Any], where: str) -> None:
    """What the table of fields cannot say."""
    for name in ("losses", "sent_nbytes"):
        for value in fields.get(name) or () if kind in ("training", "network") else ():
            _check({name: value}, [name], float, f"{where}, {name}")
    if kind == "training":
        for mode in fields["metrics"]:
            _check(fields["metrics"], [mode, "ne"], float, f"{where}, metrics.{mode}.ne")
    if kind == "network" and not fields["sent_nbytes"]:
        raise ValueError(f"{where}, sent_nbytes: expected a number a host, got none")
    if kind == "study":
        numbers = [["training", "progressive_logloss"]] if fields.get("training") else []
        for mode in ("on", "off"):
            if fields.get("training"):
                numbers += [["training", "test", mode, name] for name in ("ne", "logloss", "auc")]
            if fields.get("eval_only"):
                numbers.append(["eval_only", mode, "ne"])
        for path in numbers:
            _check(fields, path, float, f"{where}, {'.'.join(path)}")
