"""The faults, the phases of a training that they come in, and the cases that are run.

Knows: names. Does not know: processes, networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FAULTS = {
    "none": "nothing happens; the cases are compared with it",
    "kill": "SIGKILL of the rank",
    "stop": "SIGSTOP of the rank: it lives, and does not answer",
    "cut5": "the link of its host is down for 5 s",
    "cut": "the link of its host is down for good",
    "loss": "1 % of all packets are lost, from the start",
}
# In the order of a training.
PHASES = {
    "join": "before the process group is made",
    "startup": "before the model is sharded",
    "first_step": "before the first step: the others wait for its ids",
    "training": "between forward and backward: the others wait for its gradients",
    "save": "before it writes its part of the second checkpoint",
    "evaluation": "after the first batch of the test",
    "end": "before it leaves the process group",
}
# Steps of the training, all told; the fault of "training" comes in step FAULT_STEP.
STEPS, CHECKPOINT_EVERY, FAULT_STEP = 12, 4, 6


@dataclass(frozen=True)
class Case:
    """One training with one fault. victim: the rank that it happens to; one rank a host."""

    hosts: int
    fault: str
    phase: str
    victim: int

    @property
    def name(self) -> str:
        """Key of this case in a file of outcomes."""
        if self.fault in ("none", "loss"):
            return f"{self.hosts} hosts, {self.fault}"
        return f"{self.hosts} hosts, {self.fault} rank {self.victim} in {self.phase}"


def all_cases(hosts: Sequence[int], faults: Sequence[str], phases: Sequence[str]) -> list[Case]:
    """Return the cases to run: all on two hosts; on more hosts those that more hosts may change."""
    return [
        case
        for count in hosts
        for case in _cases_on(count)
        if case.fault == "none" or (case.fault in faults and case.phase in phases)
    ]


def _cases_on(hosts: int) -> Iterator[Case]:
    last = hosts - 1
    yield Case(hosts, "none", "training", last)
    yield Case(hosts, "loss", "training", last)
    for phase in PHASES:
        for fault in ("kill", "stop", "cut5", "cut"):
            if hosts == 2 or phase in ("training", "save") or (fault, phase) in _ON_MORE_HOSTS:
                yield Case(hosts, fault, phase, last)
    for fault in ("kill", "stop", "cut"):  # rank 0 has the store that all ranks use
        if hosts == 2:
            yield Case(hosts, fault, "training", 0)


_ON_MORE_HOSTS = {("kill", "startup"), ("cut", "startup"), ("kill", "evaluation")}
