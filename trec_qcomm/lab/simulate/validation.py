"""Predicted and measured steps between emulated hosts: base + bytes / B, with gloo's waiting.

The run without a limit gives everything but the links: compute, lookups, codecs. To it come the
links of the emulated network, token buckets with what was measured of gloo:

    step(B) = base + ids + forward + backward + max(0, dense - overlap base)
    ids, forward:  max(0, h n - burst) / B / (1 - wait^(N-1))
    backward:      h n / B / (1 - wait^(N-1))
    dense:         max(0, h n - burst) / B

h: the link's bytes over ours, as a packet of 1514 bytes holds 1448. burst: what leaves at once
after a pause; the rows' gradients find the bucket emptied by dense gradients before them. wait: the
share of an all-to-all's time in which nothing moves from a host to one of its peers, since gloo
often sends one way and then the other; a link to N-1 peers is idle where all of them wait, taken to
be by chance. An all-reduce goes in pieces and does not wait, nor does the reduce-scatter or
all-gather of plain TorchRec's row-wise tables. overlap: the share of the base beside which dense
gradients travel. A message's latency is in the base.

Fitted: wait and overlap, two numbers, on a few runs. Predicted: all others. This is not the model
of step.py, which has bytes and overlap in common with it. So what these runs do not test is: a slow
link inside a node and latencies, the hop inside a node of two-level plans (plans.py),
and the times of codecs, lookups and dense layers, which are all in the base here. Of hosts of
several ranks the link has what leaves the host; what they send one another is in the base, too.
Knows: measured steps. Does not know: GPUs.
Shapes: N hosts, n bytes that leave the busiest host, B of a link.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trec_qcomm.lab.simulate.measured import ROW_WISE, TABLE_WISE, MeasuredStep

PACKET_NBYTES, PACKET_PAYLOAD_NBYTES = 1514, 1448
BURST_NBYTES = 256 * 1024  # of examples/bench/net/hosts.py's links
WITHIN = 0.2  # predicted / measured is asked to be this near to 1
FIT_CONFIGURATIONS = ("stock", "unique_int4")  # one sends mostly rows, one mostly dense gradients
_GRID = 200
_MOST_WAIT = 0.5  # both directions in turn


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The two numbers that are fitted, as the module explains them."""

    wait: float
    overlap: float


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A predicted step beside the measured one. Args: is_fitted: the fit has seen it."""

    step: MeasuredStep
    predicted_s: float
    is_fitted: bool

    @property
    def ratio(self) -> float:
        """Predicted over measured seconds."""
        return self.predicted_s / self.step.step_s

    @property
    def holds(self) -> bool:
        """Whether the prediction is within 20 %."""
        return abs(self.ratio - 1) <= WITHIN


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


def pairs(steps: Sequence[MeasuredStep]) -> list[tuple[MeasuredStep, float]]:
    """Return each step with a limit beside the seconds of the same step without one.

    Steps that were not measured without a limit are left out.
    """
    unlimited_s = {step.key: step.step_s for step in steps if step.gb_s is None}
    limited = [step for step in steps if step.gb_s is not None]
    return [(step, unlimited_s[step.key]) for step in limited if step.key in unlimited_s]


def choose(
    measured: Sequence[tuple[MeasuredStep, float]], configurations: Sequence[str]
) -> list[int]:
    """Return which of the pairs to fit on: those named, table-wise, at the fewest hosts and the
    slowest link where all of them were measured.

    Raises: ValueError: a configuration that was not measured there.
    """
    if not measured:
        raise ValueError(
            "records: nothing to validate: expected steps with a limit, and the same without one"
        )
    places: dict[tuple[bool, int, int, float | None], dict[str, int]] = {}
    for i, (step, _) in enumerate(measured):
        where = (step.plan != TABLE_WISE, step.ranks_per_host, step.num_hosts, step.gb_s)
        places.setdefault(where, {})[step.configuration] = i
    complete = [place for place, there in places.items() if set(configurations) <= there.keys()]
    where = min(complete or places)
    missing = [name for name in configurations if name not in places[where]]
    if missing or not configurations:
        raise ValueError(
            f"fit-configs: {', '.join(missing) or 'none given'}: expected of "
            f"{', '.join(places[where])}, measured on {where[2]} hosts and the slowest link"
        )
    return [places[where][name] for name in configurations]


def fit(measured: Sequence[tuple[MeasuredStep, float]]) -> Fit:
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
) -> tuple[Fit, list[Prediction]]:
    """Fit on a few steps, and predict all that were also measured without a limit.

    Raises: ValueError: a configuration to fit on that was not measured.
    """
    measured = pairs(steps)
    chosen = choose(measured, fit_configurations)
    best = fit([measured[i] for i in chosen])
    return best, [
        Prediction(step=step, predicted_s=predict_s(step, base_s, best), is_fitted=i in chosen)
        for i, (step, base_s) in enumerate(measured)
    ]
