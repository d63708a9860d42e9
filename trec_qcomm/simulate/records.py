"""What was measured: steps of whole trainings between emulated hosts, and what they sent.

Reads the JSON lines that examples/bench/net/run.py writes. Of plain TorchRec (`stock*`) only the
kernel's count of all bytes is known: its ids and dense gradients are the float32 ones that a config
counted on as many hosts, and the rest is rows and their gradients, half each. A config that
merges equal bags counts only what is left of them, so one that does not has to be there.

Knows: fields of these records, configs. Does not know: models of time.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from trec_qcomm.config import Config, config_from_dict
from trec_qcomm.simulate.step import Way

KINDS = {
    "ids": ("input",),
    "forward": ("embedding_forward", "intra_embedding_forward"),
    "backward": ("embedding_backward", "intra_embedding_backward"),
    "dense": ("dense", "data_parallel"),
}
HEADERS_NBYTES = 66  # Ethernet, IP and TCP of a packet, which the kernel counts and we do not
UNITS = {"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
NO_LIMIT = "none"
# Options of a run that make no difference to a step.
_IRRELEVANT = {
    "config", "name", "out", "log_every", "timeout", "steps", "dump_rows", "tensorboard",
}  # fmt: skip

Nbytes = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One way on one network.

    Args:
        rate: of each host's link, as tc writes it.  gb_s: the same; None: no limit.
        step_s: the median of the slowest host.  config: what its YAML file says, as JSON of
        sorted keys; None of plain TorchRec.
        setup: what else a step depends on, of the training's options.
        sent: bytes of the host that sends most, by kind.  raw: the same as float32, after equal
        bags were merged.
    """

    way: str
    hosts: int
    rate: str
    gb_s: float | None
    step_s: float
    config: str | None
    setup: str
    sent: Nbytes
    raw: Nbytes


def load_runs(path: Path) -> tuple[list[Run], list[str]]:
    """All runs of a file, of equal ones the last; and which are left out, why.

    Raises: ValueError naming file, line and field.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"records {path}: cannot be read: {error}") from error
    runs: dict[tuple[object, ...], Run] = {}
    left_out: list[str] = []
    bare: list[tuple[Run, dict[str, Any]]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            run = _run(record)
        except (KeyError, TypeError, AttributeError, ValueError, yaml.YAMLError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise ValueError(f"records {path}, line {number}: {reason}") from error
        if record.get("delay"):
            left_out.append(f"line {number}: {run.way}: a delay of {record['delay']}")
        elif record["counted"] is None:
            bare.append((run, record))
        else:
            runs[_key(run)] = run
    for run, record in bare:
        beside = [r for r in runs.values() if (r.hosts, r.setup) == (run.hosts, run.setup)]
        if not beside:
            left_out.append(f"{run.way}, {run.hosts} hosts, {run.rate}: no config beside it")
            continue
        try:
            runs[_key(run)] = _completed(run, record, beside)
        except ValueError as error:
            raise ValueError(f"records {path}: {run.way}, {run.rate}: {error}") from error
    if not runs:
        raise ValueError(f"records {path}: no run that can be used")
    return list(runs.values()), left_out


def parse_rate(rate: str) -> float | None:
    """GB/s of "100mbit"; None of "none". Raises ValueError: neither."""
    for unit in sorted(UNITS, key=len, reverse=True):
        number = rate.removesuffix(unit)
        if number != rate and number.replace(".", "", 1).isdigit() and float(number) > 0:
            return float(number) * UNITS[unit] / 8e9
    if rate == NO_LIMIT:
        return None
    raise ValueError(f"rate: {rate!r} is not {NO_LIMIT} or a number with {', '.join(UNITS)}")


def find_way(name: str, runs: Sequence[Run]) -> Way:
    """Ratios of a way, at the fewest hosts it was measured with; the last of these runs.

    Raises: ValueError naming the way and what there is.
    """
    own = [run for run in runs if run.way == name]
    if not own:
        known = ", ".join(dict.fromkeys(run.way for run in runs))
        raise ValueError(f"ways: {name!r} was not measured; expected of {known}")
    run = min(reversed(own), key=lambda r: r.hosts)
    ours = run.config is not None
    kinds = ("forward", "backward", "dense")
    for kind in kinds:
        if not (run.raw[kind] > 0 and run.sent[kind] > 0):
            raise ValueError(
                f"ways: {name!r} has no ratio of {kind}: {run.raw[kind]:.0f} bytes of float32 as "
                f"{run.sent[kind]:.0f} bytes, on {run.hosts} hosts, {run.rate}; expected both > 0"
            )
    distinct = 1.0
    if ours and _merges(run):
        beside = [r for r in runs if (r.hosts, r.setup) == (run.hosts, run.setup)]
        try:
            distinct = min(1.0, run.raw["forward"] / _all_bags(run, beside)["forward"])
        except ValueError as error:
            raise ValueError(f"ways: {name!r}: {error}") from error
    return Way(
        name=name,
        distinct=distinct,
        **{kind: run.raw[kind] / run.sent[kind] for kind in kinds},
        ours=ours,
        sizes_first=ours and _sizes_first(run),
    )


def _run(record: dict[str, Any]) -> Run:
    options = {
        name: value
        for name, value in record["options"].items()
        if value is not None and name not in _IRRELEVANT
    }
    counted = record["counted"]
    sent = raw = dict.fromkeys(KINDS, 0.0)
    if counted is not None:
        sent, raw = _busiest(counted, "wire_nbytes"), _busiest(counted, "raw_nbytes")
    return Run(
        way=record["way"],
        hosts=int(record["hosts"]),
        rate=record["rate"],
        gb_s=parse_rate(record["rate"]),
        step_s=float(record["step_s"]["p50"]),
        config=_meaning(record["config"]),
        setup=json.dumps(options, sort_keys=True),
        sent=sent,
        raw=raw,
    )


def _busiest(counted: dict[str, Any], name: str) -> Nbytes:
    """By kind, of the host that sends most of it."""
    return {
        kind: max(map(sum, zip(*(counted[part][name] for part in parts), strict=True)))
        for kind, parts in KINDS.items()
    }


def _meaning(text: str | None) -> str | None:
    return None if text is None else json.dumps(yaml.safe_load(text), sort_keys=True)


def _key(run: Run) -> tuple[object, ...]:
    return run.way, run.hosts, run.rate, run.setup, run.config


def _completed(run: Run, record: dict[str, Any], beside: Sequence[Run]) -> Run:
    """Plain TorchRec, by what configs counted on as many hosts."""
    sent = max(
        nbytes - HEADERS_NBYTES * packets
        for nbytes, packets in zip(record["sent_nbytes"], record["sent_packets"], strict=True)
    )
    raw = _all_bags(run, beside)
    rows = (sent - raw["ids"] - raw["dense"]) / 2
    return replace(run, raw=raw, sent=raw | {"forward": rows, "backward": rows})


def _all_bags(run: Run, beside: Sequence[Run]) -> Nbytes:
    """float32 bytes with no bag merged, by kind. Args: beside: of as many hosts, alike set up.

    Raises: ValueError: all configs there merge bags.
    """
    whole = [r.raw for r in beside if r.config is not None and not _merges(r)]
    if not whole:
        merging = ", ".join(dict.fromkeys(r.way for r in beside if r.config is not None))
        raise ValueError(
            f"the bytes of all bags are not known: on {run.hosts} hosts only {merging} was "
            "measured, merging equal bags; expected a config with unique_bags: false beside it"
        )
    return {kind: max(raw[kind] for raw in whole) for kind in KINDS}


def _config(run: Run) -> Config:
    return config_from_dict(json.loads(run.config or "null"))


def _merges(run: Run) -> bool:
    return any(rule.unique_bags is not False for rule in _config(run).embedding)


def _sizes_first(run: Run) -> bool:
    return any(not rule.forward.fixed_size for rule in _config(run).embedding)
