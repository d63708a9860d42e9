"""Records of every kind, made by hand: small numbers that can be checked in the head."""

import json
from pathlib import Path
from typing import Any

INT4 = "embedding:\n  - tables: ['*']\n    forward: {codec: rowwise, bits: 4}\n"
INT4 += "    backward: {codec: rowwise, bits: 4}\n"
KINDS = (
    "embedding_forward", "embedding_backward", "intra_embedding_forward",
    "intra_embedding_backward", "dense", "data_parallel", "input",
)  # fmt: skip
OPTIONS = {"config": "stock", "batch_size": 64, "embedding_dim": 8, "seed": 0, "data": "rows.tsv"}
MACHINE = {
    "commit": "abc1234", "versions": {"torch": "2.13.0"}, "hardware": {"cpu": "x86_64"},
}  # fmt: skip

Record = dict[str, Any]


def network(way: str = "stock", rate: str = "1gbit", p50_s: float = 1.0, **changes: Any) -> Record:
    """Sends 1 MB, or what `sent` says; whiskers are 1 % to either side."""
    sent = changes.pop("sent", 1e6)
    record = {
        "hosts": 2, "rate": rate, "delay": None, "options": OPTIONS | {"config": way},
        "config": None, **MACHINE, "world_size": 2, "way": way, "num_steps": 3,
        "step_s": {"p20": 0.99 * p50_s, "p50": p50_s, "p80": 1.01 * p50_s},
        "sent_nbytes": [sent, sent], "counted": None, "metrics": {"ne": 0.9},
        "losses": [0.7, 0.6, 0.5],
    }  # fmt: skip
    return record | changes


def counted(**raw_and_wire: tuple[float, float]) -> dict[str, Any]:
    """Bytes by kind, equal on both hosts; 0 of a kind that is not named."""
    pairs = {kind: raw_and_wire.get(kind, (0.0, 0.0)) for kind in KINDS}
    return {
        kind: {"raw_nbytes": [raw, raw], "wire_nbytes": [wire, wire]}
        for kind, (raw, wire) in pairs.items()
    }


def training(config: str = "fp32", ne: float = 0.9, **changes: Any) -> Record:
    """Two tables: of `small` one bag in four was sent, `large` has no bound."""
    nbytes = {kind: {"raw_nbytes": 0.0, "wire_nbytes": 0.0} for kind in KINDS}
    nbytes["embedding_forward"] = {"raw_nbytes": 2e6, "wire_nbytes": 5e5}
    record = {
        "kind": "final", "name": "run", "options": OPTIONS | {"config": f"configs/{config}.yaml"},
        "config": INT4, **MACHINE, "world_size": 2, "step": 3, "losses": [0.7, 0.6, 0.5],
        "metrics": {"on": {"ne": ne}}, "nbytes_per_step": nbytes,
        "tables": {
            "small": {
                "raw_nbytes": {"forward": 640.0, "backward": 0.0},
                "wire_nbytes": {"forward": 80.0, "backward": 0.0},
                "num_bags": 40.0, "num_sent": 10.0, "params": [0.01, 0.03],
            },
            "large": {
                "raw_nbytes": {"forward": 320.0, "backward": 320.0},
                "wire_nbytes": {"forward": 320.0, "backward": 160.0},
                "num_bags": 0, "num_sent": 0, "params": [],
            },
        },
    }  # fmt: skip
    return record | changes


def study(config: str, seed: int, ne: float, sha: str) -> Record:
    test = {"ne": ne, "logloss": ne, "auc": 0.75}
    return {
        "config": config, "seed": seed, "config_sha256": sha, "options": {"ranks": "4"},
        "training": {"test": {"on": test, "off": test}, "progressive_logloss": ne},
        "commit": "abc1234", "torch": "2.13.0",
    }  # fmt: skip


def codec(name: str = "ours", ours: bool = True, encode: float = 2.0, **changes: Any) -> Record:
    record = {
        "bench": "codec", "name": name, "ours": ours, "kind": "rows", "dim": 64, "threads": 1,
        "ratio": 8.0, "error_over_bound": 0.75, "break_even_gb_s": 1.5, **MACHINE,
        "encode_gb_s": {"p20": encode / 2, "p50": encode, "p80": encode * 2},
        "decode_gb_s": {"p20": 1.0, "p50": 3.0, "p80": 5.0},
    }  # fmt: skip
    return record | changes


def simulated() -> list[Record]:
    """A prediction that is 10 % off and one that is 50 % off; steps and break-even of two ways."""
    found: list[Record] = [
        {"simulate": "validation", "way": way, "hosts": 2, "rate": "1gbit", "measured_s": 1.0,
         "predicted_s": predicted, "fitted": fitted, "fit": {"latency_s": 0.001}}
        for way, predicted, fitted in (("stock", 1.1, False), ("int4", 1.5, False), ("b", 1, True))
    ]  # fmt: skip
    for way, step_s in (("stock", 0.004), ("int4", 0.001)):
        found += [
            {"simulate": "scale", "way": way, "num_gpus": n, "plan": "tw", "network_gbit_s": 100.0,
             "step_s": n * step_s, "communication_share": 0.25, "assumed": {"overlap": 0.5}}
            for n in (8, 64)
        ]  # fmt: skip
    limits: list[tuple[int, str, float | None]] = [(8, "below", 300.0), (64, "always", None)]
    found += [
        {"simulate": "break_even", "way": "int4", "against": "stock", "num_gpus": n, "plan": "tw",
         "pays": pays, "network_gbit_s": speed, "assumed": {"overlap": 0.5}}
        for n, pays, speed in limits
    ]  # fmt: skip
    return found


def everything() -> list[Record]:
    """Enough for every figure."""
    dense = {"dense": (3e5, 3e5), "input": (1e5, 1e5)}
    rows = counted(embedding_forward=(3e5, 3e4), embedding_backward=(3e5, 3e4), **dense)
    found = [
        network(way, rate, p50_s, sent=sent, counted=own, config=config)
        for way, sent, own, config, times in (
            ("stock", 1e6, None, None, (8.0, 2.0)),
            ("int4", 4.6e5, rows, INT4, (4.0, 2.4)),
        )
        for rate, p50_s in zip(("100mbit", "none"), times, strict=True)
    ]
    for seed in range(5):
        found += [study("fp32", seed, 1.0, "0"), study("int4", seed, 1.01 + seed / 1e4, "1")]
    return [*found, training(), codec(), codec("theirs", False, 1.0), *simulated()]


def write(path: Path, records: list[Record]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
