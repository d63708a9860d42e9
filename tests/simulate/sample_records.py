"""Records as examples/bench/net/run.py writes them, of steps that a known fit predicts exactly."""

import json
from pathlib import Path
from typing import Any

from trec_qcomm.simulate.records import HEADERS_NBYTES, KINDS, load_runs
from trec_qcomm.simulate.validation import Fit, predict_s

BASE_S = 0.25
TRUE = Fit(wait=0.3, overlap=0.2)
ROWS, DENSE, IDS = 6_800_000.0, 3_000_000.0, 300_000.0  # float32 bytes of all bags
DISTINCT = 0.25
PACKETS = 1000
CODED = """embedding:
  - tables: ["*"]
    forward: {{codec: {forward}}}
    backward: {{codec: rowwise, bits: 8}}
    unique_bags: {merge}
"""
INT8 = CODED.format(forward="rowwise, bits: 8", merge="false")
MERGED = CODED.format(forward="rowwise, bits: 4", merge="auto")
BEST = CODED.format(forward="error_bounded, bound: 0.01, mode: rel", merge="true")
# YAML, share of bags, compression ratios of forward, backward and dense.
CONFIGS = {
    "int8": (INT8, 1.0, 4.0, 4.0, 1.0),
    "unique_int4": (MERGED, DISTINCT, 8.0, 8.0, 1.0),
    "best": (BEST, DISTINCT, 10.0, 8.0, 2.0),
}
STOCK = {"stock": 1.0, "stock_fp16": 2.0}

Record = dict[str, Any]


def record(way: str, hosts: int = 2, rate: str = "100mbit", step_s: float = 1.0) -> Record:
    """One way on one network."""
    found = {
        "way": way,
        "hosts": hosts,
        "rate": rate,
        "delay": None,
        "options": {"config": way, "batch_size": 2048, "tensorboard": None},
        "step_s": {"p50": step_s},
    }
    if way in STOCK:
        nbytes = IDS + DENSE + 2 * ROWS / STOCK[way] + PACKETS * HEADERS_NBYTES
        sent = {"sent_nbytes": [nbytes] * hosts, "sent_packets": [PACKETS] * hosts}
        return found | sent | {"config": None, "counted": None}
    text, share, forward, backward, dense = CONFIGS[way]
    return found | {
        "config": text,
        "counted": {part: _counted(0, 1, hosts) for parts in KINDS.values() for part in parts}
        | {
            "input": _counted(IDS * share, 1, hosts),
            "embedding_forward": _counted(ROWS * share, forward, hosts),
            "embedding_backward": _counted(ROWS * share, backward, hosts),
            "dense": _counted(DENSE, dense, hosts),
        },
    }


def _counted(raw: float, ratio: float, hosts: int) -> dict[str, list[float]]:
    """By host; the last one sends most."""
    shares = [0.9] * (hosts - 1) + [1.0]
    return {
        "raw_nbytes": [raw * s for s in shares],
        "wire_nbytes": [raw / ratio * s for s in shares],
    }


def everything(path: Path) -> list[Record]:
    """All ways on all networks, each step as long as TRUE says. Args: path: written on the way."""
    networks = [(hosts, rate) for hosts in (2, 4) for rate in ("none", "100mbit", "1gbit")]
    found = [record(way, *network) for network in networks for way in (*STOCK, *CONFIGS)]
    runs, _ = load_runs(write(path, found))
    steps = {(r.way, r.hosts, r.rate): predict_s(r, BASE_S, TRUE) for r in runs}
    return [r | {"step_s": {"p50": steps[r["way"], r["hosts"], r["rate"]]}} for r in found]


def write(path: Path, records: list[Record]) -> Path:
    """As JSON lines."""
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path
