"""Network records, of steps that a known fit predicts exactly."""

from dataclasses import replace
from pathlib import Path

from tests.lab.report import sample_records as samples
from tests.lab.report.sample_records import write
from trec_qcomm.lab.records import NetworkRecord, Percentiles
from trec_qcomm.lab.records.trainings import HEADERS_NBYTES
from trec_qcomm.lab.simulate.measured import load_steps
from trec_qcomm.lab.simulate.validation import Fit, predict_s

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


def network(
    name: str, num_hosts: int = 2, rate: str = "100mbit", step_s: float = 1.0
) -> NetworkRecord:
    """One configuration on one network."""
    config, traffic, sent_nbytes = None, None, 0.0
    if name in STOCK:
        sent_nbytes = IDS + DENSE + 2 * ROWS / STOCK[name] + PACKETS * HEADERS_NBYTES
    else:
        config, share, forward, backward, dense = CONFIGS[name]
        traffic = tuple(
            samples.traffic(
                input=counts(part * IDS, share),
                embedding_forward=counts(part * ROWS, share, forward),
                embedding_backward=counts(part * ROWS, share, backward),
                dense=counts(part * DENSE, 1.0, dense),
            )
            for part in (*[0.9] * (num_hosts - 1), 1.0)  # the last host sends most
        )
    return samples.network(
        name,
        rate,
        step_s,
        config=config,
        setup={"batch_size": 2048},
        num_hosts=num_hosts,
        sent_nbytes=(sent_nbytes,) * num_hosts,
        sent_packets=(PACKETS,) * num_hosts,
        traffic=traffic,
    )


def counts(raw: float, share: float, ratio: float = 1.0) -> tuple[float, float, float]:
    """Raw, distinct and wire bytes. Args: share: of bags that is sent. ratio: of the codec."""
    return raw, raw * share, raw * share / ratio


def timed(record: NetworkRecord, step_s: float) -> NetworkRecord:
    """Return the record with another step time."""
    return replace(record, step_s=Percentiles(p20=step_s, p50=step_s, p80=step_s))


def everything(path: Path) -> list[NetworkRecord]:
    """All configurations on all networks, each step as long as TRUE says.

    Args: path: file that is written on the way.
    """
    networks = [(hosts, rate) for hosts in (2, 4) for rate in ("none", "100mbit", "1gbit")]
    records = [network(name, *where) for where in networks for name in (*STOCK, *CONFIGS)]
    steps, _ = load_steps(write(path, records))
    seconds = {(s.configuration, s.num_hosts, s.rate): predict_s(s, BASE_S, TRUE) for s in steps}
    return [timed(r, seconds[r.configuration, r.num_hosts, r.rate]) for r in records]
