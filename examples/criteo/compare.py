"""Trains with several configs on the same rows and seed and shows them side by side.

  python compare.py --configs ../../configs/fp32.yaml ../../configs/int8.yaml
  python compare.py --configs stock ../../configs/int4.yaml --data train.txt --embedding-dim 64

Every other option goes to train.py as it is, --help of which lists them. Each config is a run of
train.py of its own, one after another. The change of NE is against the first config.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TRAIN = Path(__file__).with_name("train.py")
TRAFFIC = {
    "forward": ("embedding_forward",),
    "backward": ("embedding_backward",),
    "in node": ("intra_embedding_forward", "intra_embedding_backward"),
    "dense": ("dense", "data_parallel"),
    "ids": ("input",),
}


Record = dict[str, Any]


def main() -> int:
    """Run all configs; the exit status is that of the first that failed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--configs", nargs="+", required=True, help="YAML files, or stock")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="default: runs")
    arguments, rest = parser.parse_known_args()
    started = time.perf_counter()
    records: dict[str, Record] = {}
    for number, config in enumerate(arguments.configs, start=1):
        print(f"[{number}/{len(arguments.configs)}] {config}", flush=True)
        name = f"compare-{number}-{Path(config).stem}"
        status = train(config, name, arguments.out, rest)
        if status:
            print(f"{config}: train.py ended with status {status}", file=sys.stderr)
            return status
        records[name] = last_record(arguments.out / f"{name}.jsonl")
    print(format_table(list(records.values())))
    print(format_verdict(list(records.values()), time.perf_counter() - started))
    return 0


def train(config: str, name: str, out: Path, rest: Sequence[str]) -> int:
    """Run train.py and return its exit status; it shows its progress, its table stays hidden."""
    command = [sys.executable, str(TRAIN), "--config", config, "--name", name, "--out", str(out)]
    try:
        return subprocess.run([*command, *rest], stdout=subprocess.DEVNULL, check=False).returncode
    except KeyboardInterrupt:
        return 130


def last_record(path: Path) -> Record:
    """The final record of the run that wrote last.

    Raises: ValueError: that run did not come to its end.
    """
    record: Record = json.loads(path.read_text().splitlines()[-1])
    if record["kind"] != "final":
        raise ValueError(f"{path}: the last record is {record['kind']}, not final")
    return record


def format_table(records: Sequence[Record]) -> str:
    """A line a config. Bytes are raw -> wire, KB a step, of one rank to the others."""
    head = [
        "config",
        "AUC",
        "logloss",
        "NE",
        *(f"{kind} [KB/step]" for kind in TRAFFIC),
        "p50 [ms]",
    ]
    lines = [head, *(_cells(record, records[0]) for record in records)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def format_verdict(records: Sequence[Record], elapsed_s: float) -> str:
    """One line: how much less the smallest config sends than float32 would, at what cost."""
    done = f"{len(records)} configs in {elapsed_s:.0f} s"
    counted = [record for record in records if record["nbytes_per_step"]]
    if not counted:
        return f"{done}: none of them counts its bytes"
    best = min(counted, key=lambda record: sum(_nbytes(record, "wire_nbytes").values()))
    raw, wire = _nbytes(best, "raw_nbytes"), _nbytes(best, "wire_nbytes")
    embedding = (raw["forward"] + raw["backward"]) / (wire["forward"] + wire["backward"] or 1)
    whole = sum(raw.values()) / (sum(wire.values()) or 1)
    return (
        f"{done}: {_config_name(best)} sends {embedding:.2f}x fewer embedding bytes than float32, "
        f"{whole:.2f}x fewer in all; NE {_change(best, records[0])} against "
        f"{_config_name(records[0])} (one seed, noise included)"
    )


def _cells(record: Record, first: Record) -> list[str]:
    metrics = _metrics(record)
    cells = [_config_name(record), f"{metrics['auc']:.4f}", f"{metrics['logloss']:.4f}"]
    cells.append(_change(record, first))
    if record["nbytes_per_step"]:
        raw, wire = _nbytes(record, "raw_nbytes"), _nbytes(record, "wire_nbytes")
        cells += [f"{raw[kind] / 1e3:.1f} -> {wire[kind] / 1e3:.1f}" for kind in TRAFFIC]
    else:
        cells += ["-"] * len(TRAFFIC)
    return [*cells, f"{record['step_ms']['p50']:.1f}"]


def _nbytes(record: Record, name: str) -> dict[str, float]:
    nbytes = record["nbytes_per_step"]
    return {kind: sum(nbytes[part][name] for part in parts) for kind, parts in TRAFFIC.items()}


def _metrics(record: Record) -> dict[str, float]:
    """As the model would be served: with the codec, where it was scored so."""
    modes: dict[str, dict[str, float]] = record["metrics"]
    return modes.get("on") or modes["off"]


def _change(record: Record, first: Record) -> str:
    return f"{100 * (_metrics(record)['ne'] / _metrics(first)['ne'] - 1):+.3f} %"


def _config_name(record: Record) -> str:
    return Path(record["options"]["config"]).stem


if __name__ == "__main__":
    sys.exit(main())
