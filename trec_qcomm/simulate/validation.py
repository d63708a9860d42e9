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
be by chance. An all-reduce goes in pieces and does not wait. overlap: the share of the base beside
which dense gradients travel. A message's latency is in the base.

Fitted: wait and overlap, two numbers, on a few runs. Predicted: all others. This is not the model
of step.py, which has bytes and overlap in common with it. So what these runs do not test is: two
link levels and latencies (links.py), row-wise and two-level plans (plans.py), and the times of
codecs, lookups and dense layers, which are all in the base here.
Knows: runs. Does not know: GPUs. Shapes: N hosts, n bytes of the busiest host, B of a link.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trec_qcomm.simulate.records import Run

PACKET_NBYTES, PACKET_PAYLOAD_NBYTES = 1514, 1448
BURST_NBYTES = 256 * 1024  # of examples/bench/net/hosts.py's links
WITHIN = 0.2  # predicted / measured is asked to be this near to 1
FIT_WAYS = ("stock", "unique_int4")  # one sends mostly rows, one mostly dense gradients
_GRID = 200
_MOST_WAIT = 0.5  # both directions in turn


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The two numbers that are fitted. Args: wait, overlap: see the module."""

    wait: float
    overlap: float


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Args: run: what was measured.  predicted_s: of its step.  fitted: the fit has seen it."""

    run: Run
    predicted_s: float
    fitted: bool

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_s / self.run.step_s

    @property
    def holds(self) -> bool:
        """Within 20 %."""
        return abs(self.ratio - 1) <= WITHIN


def predict_s(run: Run, base_s: float, fit: Fit) -> float:
    """A step on the run's network. Args: base_s: without a limit."""
    if run.gb_s is None:
        return base_s
    turns = 1 / (1 - fit.wait ** (run.hosts - 1)) if run.hosts > 1 else 1.0
    rows_s = sum(
        _link_s(run.sent[kind], run.gb_s, burst)
        for kind, burst in (("ids", BURST_NBYTES), ("forward", BURST_NBYTES), ("backward", 0))
    )
    dense_s = _link_s(run.sent["dense"], run.gb_s, BURST_NBYTES)
    return base_s + turns * rows_s + max(0.0, dense_s - fit.overlap * base_s)


def _link_s(nbytes: float, gb_s: float, burst_nbytes: float) -> float:
    on_link = nbytes * PACKET_NBYTES / PACKET_PAYLOAD_NBYTES
    return max(0.0, on_link - burst_nbytes) / (1e9 * gb_s)


def pairs(runs: Sequence[Run]) -> list[tuple[Run, float]]:
    """(a run with a limit, the step without one of the same way, hosts and setup), where there is
    one."""
    free = {_what(run): run.step_s for run in runs if run.gb_s is None}
    limited = [run for run in runs if run.gb_s is not None]
    return [(run, free[_what(run)]) for run in limited if _what(run) in free]


def _what(run: Run) -> tuple[object, ...]:
    return run.way, run.hosts, run.setup, run.config


def choose(measured: Sequence[tuple[Run, float]], ways: Sequence[str]) -> list[int]:
    """Which of the pairs to fit on: the ways named, at the fewest hosts and the slowest link.

    Raises: ValueError: a way that has no run there.
    """
    if not measured:
        raise ValueError(
            "records: nothing to validate: expected runs with a limit, and the same without one"
        )
    where = min((run.hosts, run.gb_s) for run, _ in measured)
    there = {run.way: i for i, (run, _) in enumerate(measured) if (run.hosts, run.gb_s) == where}
    missing = [way for way in ways if way not in there]
    if missing or not ways:
        raise ValueError(
            f"fit-ways: {', '.join(missing) or 'none given'}: expected of {', '.join(there)}, "
            f"measured on {where[0]} hosts and the slowest link"
        )
    return [there[way] for way in ways]


def fit(measured: Sequence[tuple[Run, float]]) -> Fit:
    """The best of a grid, by the sum of squares of predicted / measured - 1; steps of 1/200."""
    return min(
        (
            Fit(wait=wait / _GRID, overlap=overlap / _GRID)
            for wait in range(int(_MOST_WAIT * _GRID) + 1)
            for overlap in range(_GRID + 1)
        ),
        key=lambda tried: sum(
            (predict_s(run, base_s, tried) / run.step_s - 1) ** 2 for run, base_s in measured
        ),
    )


def validate(runs: Sequence[Run], fit_ways: Sequence[str]) -> tuple[Fit, list[Prediction]]:
    """Fit on a few runs, predict all that have a base. Raises ValueError: see choose."""
    measured = pairs(runs)
    chosen = choose(measured, fit_ways)
    found = fit([measured[i] for i in chosen])
    return found, [
        Prediction(run=run, predicted_s=predict_s(run, base_s, found), fitted=i in chosen)
        for i, (run, base_s) in enumerate(measured)
    ]
