"""What was measured: steps of whole trainings between emulated hosts, and what they sent.

Reads the JSON lines that examples/bench/net/run.py writes. Of plain TorchRec (`stock*`) only the
kernel's count of all bytes is known: its ids and dense gradients are the float32 ones that a config
counted on the same network, and the rest is rows and their gradients, half each.

Knows: fields of these records, configs. Does not know: models of time.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from trec_qcomm.config import config_from_dict
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
_IRRELEVANT = {"config", "name", "out", "log_every", "timeout", "steps", "dump_rows"}

Nbytes = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One way on one network.

    Args:
        rate: of each host's link, as tc writes it.  gb_s: the same; None: no limit.
        step_s: the median of the slowest host.  config: the text of its YAML file, or None.
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
        except (KeyError, TypeError, AttributeError, ValueError) as error:
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
        if beside:
            runs[_key(run)] = _completed(run, record, beside)
        else:
            left_out.append(f"{run.way}, {run.hosts} hosts, {run.rate}: no config beside it")
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
    beside = [r for r in runs if (r.hosts, r.setup) == (run.hosts, run.setup)]
    ours = run.config is not None
    return Way(
        name=name,
        distinct=min(1.0, run.raw["forward"] / max(r.raw["forward"] for r in beside)),
        **{kind: run.raw[kind] / run.sent[kind] for kind in ("forward", "backward", "dense")},
        ours=ours,
        sizes_first=ours and _sizes_first(run.config),
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
        config=record["config"],
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


def _key(run: Run) -> tuple[object, ...]:
    return run.way, run.hosts, run.rate, run.setup, run.config


def _completed(run: Run, record: dict[str, Any], beside: Sequence[Run]) -> Run:
    """Plain TorchRec, by what configs counted on as many hosts."""
    sent = max(
        nbytes - HEADERS_NBYTES * packets
        for nbytes, packets in zip(record["sent_nbytes"], record["sent_packets"], strict=True)
    )
    raw = {kind: max(r.raw[kind] for r in beside) for kind in KINDS}
    rows = (sent - raw["ids"] - raw["dense"]) / 2
    return replace(run, raw=raw, sent=raw | {"forward": rows, "backward": rows})


def _sizes_first(text: str | None) -> bool:
    config = config_from_dict(yaml.safe_load(text or ""))
    return any(not rule.forward.fixed_size for rule in config.embedding)
