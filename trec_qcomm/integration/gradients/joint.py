"""JointBuckets: small buckets of one backward that are all-reduced together, on a CPU.

An all-reduce costs some milliseconds of Python and of waiting, however small it is, and DDP's first
bucket has 1 MB. So small buckets wait for the next one, and their values are copied into one memory
and back. The results have the same bits: neither noise nor chunks depend on buckets.

Knows: buckets, futures. Does not know: DDP, rules.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.futures import Future

from trec_qcomm.comm.rounds import Rounds
from trec_qcomm.comm.transport import result_or_error
from trec_qcomm.core.devices import is_gpu

SMALL_NUMEL = 1 << 20  # values; a bucket of this size goes by itself


class JointBuckets:
    """Buckets that wait for the next one."""

    def __init__(self) -> None:
        """Begin without buckets."""
        self._memory = torch.empty(0)
        self.clear()

    def clear(self) -> None:
        """Forget the buckets that wait."""
        self._parameters: list[nn.Parameter] = []
        self._buffers: list[Tensor] = []
        self._outcomes: list[Future[Tensor | Exception]] = []

    @property
    def is_waiting(self) -> bool:
        """Whether a bucket waits for the next one."""
        return bool(self._outcomes)

    def is_small(self, values: Tensor) -> bool:
        """Return whether a bucket is to wait, as all ranks find alike. Args: values: [E]."""
        waiting = sum(buffer.numel() for buffer in self._buffers)
        return not is_gpu(values.device) and waiting + values.numel() < SMALL_NUMEL

    def keep(self, parameters: Sequence[nn.Parameter], values: Tensor) -> Future[Tensor]:
        """Let a bucket wait, and return a future of its mean. Args: values: [E] float32."""
        outcome: Future[Tensor | Exception] = Future()
        self._parameters += parameters
        self._buffers.append(values)
        self._outcomes.append(outcome)
        return outcome.then(result_or_error)

    def join(
        self, parameters: Sequence[nn.Parameter], values: Tensor
    ) -> tuple[Sequence[nn.Parameter], Tensor]:
        """Return the parameters of a bucket and of those that wait, and memory for their values."""
        self._buffers.append(values)
        if not self.is_waiting:
            return parameters, values
        numel = sum(buffer.numel() for buffer in self._buffers)
        if self._memory.numel() != numel:
            self._memory = values.new_empty(numel)
        return [*self._parameters, *parameters], self._memory

    def apart(self, rounds: Rounds) -> Rounds:
        """Return the rounds of an all-reduce in `join`'s memory, whose means go to the buckets."""
        return _apart(rounds, self._memory, self._buffers) if self.is_waiting else rounds

    def end(self, mean: Future[Tensor]) -> Future[Tensor]:
        """Return a future of the last bucket's mean, and set those of the others.

        Args: mean: the future of the all-reduce in the memory of `join`.
        """
        *buffers, last = self._buffers
        for outcome, buffer in zip(self._outcomes, buffers, strict=True):
            mean.add_done_callback(partial(_pass_on, outcome, buffer))
        future = mean.then(partial(_in, last)) if buffers else mean
        self.clear()
        return future


def _apart(rounds: Rounds, memory: Tensor, buffers: Sequence[Tensor]) -> Rounds:
    torch.cat(list(buffers), out=memory)
    yield from rounds
    for buffer, part in zip(
        buffers, torch.split(memory, [b.numel() for b in buffers]), strict=True
    ):
        buffer.copy_(part)


def _in(buffer: Tensor, mean: "Future[Tensor]") -> Tensor:
    mean.value()  # or raise its error
    return buffer


def _pass_on(outcome: "Future[Tensor | Exception]", buffer: Tensor, mean: "Future[Tensor]") -> None:
    try:
        outcome.set_result(_in(buffer, mean))
    except Exception as error:
        outcome.set_result(error)
