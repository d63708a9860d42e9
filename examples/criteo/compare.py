"""Trains with several configs on the same rows and seed and shows them side by side.

  python examples/criteo/compare.py --configs configs/fp32.yaml configs/best.yaml
  python examples/criteo/compare.py --configs stock configs/int4.yaml --data train.txt

Every other option goes to train.py as it is, --help of which lists them. Each config is a run of
train.py of its own, one after another. The change of NE is against the first config.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trec_qcomm.lab import records
from trec_qcomm.lab.records import TRAFFIC_GROUPS, TrainingRecord

TRAIN = Path(__file__).with_name("train.py")
INTERRUPTED = 130


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
    trainings: list[TrainingRecord] = []
    for number, config in enumerate(arguments.configs, start=1):
        print(f"[{number}/{len(arguments.configs)}] {config}", flush=True)
        name = f"compare-{number}-{Path(config).stem}"
        status = train(config, name, arguments.out, rest)
        if status:
            print(f"{config}: train.py ended with status {status}", file=sys.stderr)
            return status
        trainings.append(last_training(arguments.out / f"{name}.jsonl"))
    print(format_table(trainings))
    print(format_verdict(trainings, time.perf_counter() - started))
    return 0


def train(config: str, name: str, out: Path, rest: Sequence[str]) -> int:
    """Run train.py and return its exit status; it shows its progress, its table stays hidden."""
    command = [sys.executable, str(TRAIN), "--config", config, "--name", name, "--out", str(out)]
    try:
        return subprocess.run([*command, *rest], stdout=subprocess.DEVNULL, check=False).returncode
    except KeyboardInterrupt:
        return INTERRUPTED


def last_training(path: Path) -> TrainingRecord:
    """Return the training that was written last.

    Raises: ValueError: the last run did not come to its end.
    """
    record = records.read(path)[-1]
    if not isinstance(record, TrainingRecord):
        raise ValueError(f"{record.origin}: the last record is of kind {record.kind}, not training")
    return record


def format_table(trainings: Sequence[TrainingRecord]) -> str:
    """Return a line a config. Bytes are raw -> wire, KB a step, of one rank to the others."""
    kinds = (f"{group} [KB/step]" for group in TRAFFIC_GROUPS)
    lines = [["config", "AUC", "logloss", "NE", *kinds, "p50 [ms]"]]
    lines += [_cells(training, trainings[0]) for training in trainings]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def format_verdict(trainings: Sequence[TrainingRecord], elapsed_s: float) -> str:
    """Return one sentence: what the config with the fewest bytes saves, and what it costs."""
    done = f"{len(trainings)} configs in {elapsed_s:.0f} s"
    counted = [training for training in trainings if training.traffic is not None]
    if not counted:
        return f"{done}: none of them counts its bytes"
    least = min(counted, key=lambda training: sum(wire for _, wire in _kb(training).values()))
    sent = _kb(least)
    raw, wire = (sum(column) for column in zip(*sent.values(), strict=True))
    rows = [sum(sent[group][k] for group in ("forward", "backward")) for k in (0, 1)]
    change, first = _change(least, trainings[0]), trainings[0].configuration
    return (
        f"{done}: {least.configuration} sends {raw / wire:.1f}x fewer bytes a step than "
        f"float32 ({raw:.0f} -> {wire:.0f} KB in all, {rows[0]:.0f} -> {rows[1]:.0f} "
        f"KB of embeddings); NE {change} against {first} (one seed; noise alone moves it by about "
        "0.1 %)"
    )


def _cells(training: TrainingRecord, first: TrainingRecord) -> list[str]:
    metrics = _metrics(training)
    auc = f"{metrics['auc']:.4f}" if "auc" in metrics else "n/a"
    cells = [training.configuration, auc, f"{metrics['logloss']:.4f}", _change(training, first)]
    if training.traffic is None:
        cells += ["-"] * len(TRAFFIC_GROUPS)
    else:
        cells += [f"{raw:.1f} -> {wire:.1f}" for raw, wire in _kb(training).values()]
    return [*cells, f"{1e3 * training.step_s.p50:.1f}" if training.step_s else "-"]


def _kb(training: TrainingRecord) -> dict[str, tuple[float, float]]:
    """Return KB a step by group of traffic: as float32, and as sent."""
    kb = {}
    for group, kinds in TRAFFIC_GROUPS.items():
        sent = [traffic for k in kinds if (traffic := (training.traffic or {}).get(k))]
        raw, wire = sum(t.raw_nbytes or 0 for t in sent), sum(t.wire_nbytes for t in sent)
        kb[group] = raw / 1e3, wire / 1e3
    return kb


def _metrics(training: TrainingRecord) -> records.Metrics:
    """Return the metrics as the model would be served: with the codec, where it was scored so."""
    return training.metrics or training.metrics_exact


def _change(training: TrainingRecord, first: TrainingRecord) -> str:
    ours, base = (_metrics(record).get("ne") for record in (training, first))
    return "n/a" if ours is None or base is None else f"{100 * (ours / base - 1):+.3f} %"


if __name__ == "__main__":
    sys.exit(main())
