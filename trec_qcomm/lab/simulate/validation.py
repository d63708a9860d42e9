"""Predicted and measured steps between emulated hosts: base + bytes / B, with gloo's waiting.

The run without a limit gives everything but the links: compute, lookups, codecs. The links of the
emulated network are added: token buckets, with measurements of gloo:

    step(B) = base + ids + forward + backward + max(0, dense - overlap base)
    ids, forward:  max(0, h n - burst) / B / (1 - wait^(N-1))
    backward:      h n / B / (1 - wait^(N-1))
    dense:         max(0, h n - burst) / B

- h: the link's bytes over ours, because a packet of 1514 bytes holds 1448.
- burst: bytes that leave at once after a pause. The rows' gradients find the bucket emptied by the
  dense gradients before them.
- wait: the share of an all-to-all's time in which nothing moves from a host to one of its peers,
  because gloo often sends one way and then the other. A link to N-1 peers is idle when all of them
  wait, which is taken to happen by chance. An all-reduce goes in pieces and does not wait. Neither
  does the reduce-scatter or all-gather of plain TorchRec's row-wise tables.
- overlap: the share of the base beside which dense gradients travel.

A message's latency is in the base. Wait and overlap are fitted, two numbers, on a few runs. All
other steps are predicted.

This is not the model of step.py, which shares only bytes and overlap with it. So these runs do not
test a slow link inside a node, latencies, and the hop inside a node of two-level plans (plans.py).
They do not test the times of codecs, lookups and dense layers either, which are all in the base
here. If hosts have several ranks, the link carries what leaves the host. Traffic between ranks of a
host is in the base, too.

Knows: measured steps. Does not know: GPUs.
Shapes: N hosts, n bytes that leave the busiest host, B of a link.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from trec_qcomm.lab.records import ValidationRecord
from trec_qcomm.lab.simulate.measured import ROW_WISE, TABLE_WISE, MeasuredStep

PACKET_NBYTES, PACKET_PAYLOAD_NBYTES = 1514, 1448
BURST_NBYTES = 256 * 1024  # of examples/bench/net/hosts.py's links
WITHIN = 0.2  # predicted / measured is asked to be this near to 1
FIT_CONFIGURATIONS = ("stock", "unique_int4")  # one sends mostly rows, one mostly dense gradients
_GRID = 200
_MOST_WAIT = 0.5  # both directions in turn

Pair = tuple[MeasuredStep, float]  # with a limit, and seconds of the same without one


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The two numbers that are fitted, as the module explains them."""

    wait: float
    overlap: float


def predict_s(step: MeasuredStep, base_s: float, fit: Fit) -> float:
    """Return the seconds of a step on its network. Args: base_s: seconds without a limit."""
    if step.gb_s is None:
        return base_s
    turns = 1 / (1 - fit.wait ** (step.num_hosts - 1)) if step.num_hosts > 1 else 1.0
    row_turns = 1.0 if step.config is None and step.plan == ROW_WISE else turns
    groups = {"ids": turns, "forward": row_turns, "backward": row_turns, "dense": 1.0}
    seconds = {
        group: times * _link_s(step.sent[group], step.gb_s, BURST_NBYTES * (group != "backward"))
        for group, times in groups.items()
    }
    dense_s = seconds.pop("dense")
    return base_s + sum(seconds.values()) + max(0.0, dense_s - fit.overlap * base_s)


def _link_s(nbytes: float, gb_s: float, burst_nbytes: float) -> float:
    on_link = nbytes * PACKET_NBYTES / PACKET_PAYLOAD_NBYTES
    return max(0.0, on_link - burst_nbytes) / (1e9 * gb_s)


def pairs(steps: Sequence[MeasuredStep]) -> list[Pair]:
    """Return each step with a limit beside the seconds of the same step without one.

    Steps that were not measured without a limit are left out.
    """
    unlimited_s = {step.key: step.step_s for step in steps if step.gb_s is None}
    limited = [step for step in steps if step.gb_s is not None]
    return [(step, unlimited_s[step.key]) for step in limited if step.key in unlimited_s]


def choose(measured: Sequence[Pair], configurations: Sequence[str]) -> list[Pair]:
    """Return the pairs to fit on.

    They are the named ones, table-wise, at the fewest hosts and the slowest link where all were
    measured.

    Raises: ValueError: a configuration that was not measured there.
    """
    if not measured:
        raise ValueError(
            "records: nothing to validate: expected steps with a limit, and the same without one"
        )
    places: dict[tuple[bool, int, int, float | None], dict[str, Pair]] = {}
    for pair in measured:
        step = pair[0]
        where = (step.plan != TABLE_WISE, step.ranks_per_host, step.num_hosts, step.gb_s)
        places.setdefault(where, {})[step.configuration] = pair
    complete = [place for place, there in places.items() if set(configurations) <= there.keys()]
    where = min(complete or places)
    missing = [name for name in configurations if name not in places[where]]
    if missing:
        raise ValueError(
            f"fit-configs: {', '.join(missing)}: expected of "
            f"{', '.join(places[where])}, measured on {where[2]} hosts and the slowest link"
        )
    return [places[where][name] for name in configurations]


def fit(measured: Sequence[Pair]) -> Fit:
    """Return the best of a grid, by the sum of squares of predicted / measured - 1.

    Both numbers go in steps of 1/200.
    """
    return min(
        (
            Fit(wait=wait / _GRID, overlap=overlap / _GRID)
            for wait in range(int(_MOST_WAIT * _GRID) + 1)
            for overlap in range(_GRID + 1)
        ),
        key=lambda tried: sum(
            (predict_s(step, base_s, tried) / step.step_s - 1) ** 2 for step, base_s in measured
        ),
    )


def validate(
    steps: Sequence[MeasuredStep], fit_configurations: Sequence[str]
) -> tuple[Fit, list[ValidationRecord]]:
    """Fit on a few steps, and predict all that were also measured without a limit.

    Returns: the fit, and the predictions by hosts, plan and link.
    Raises: ValueError: a configuration to fit on that was not measured.
    """
    measured = sorted(pairs(steps), key=lambda p: (p[0].num_hosts, p[0].plan, p[0].gb_s))
    chosen = choose(measured, fit_configurations)
    best = fit(chosen)
    return best, [
        ValidationRecord(
            configuration=step.configuration,
            num_hosts=step.num_hosts,
            ranks_per_host=step.ranks_per_host,
            rate=step.rate,
            predicted_s=predict_s(step, base_s, best),
            measured_s=step.step_s,
            is_fitted=(step, base_s) in chosen,
            fit=asdict(best),
            plan=step.plan,
        )
        for step, base_s in measured
    ]


def holds(record: ValidationRecord) -> bool:
    """Return whether a prediction is within 20 %."""
    return abs(record.predicted_s / record.measured_s - 1) <= WITHIN
