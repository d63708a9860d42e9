"""Coder of a stream of 16 or 32 states in vectors of 16 states, for CPUs with AVX-512.

It does what stream.py does, with the same words and states. The loops are written in LLVM's
language, because numba has no vectors. A gather looks up a table. An expansion or a compression
moves the words that enter or leave the states. A vector waits for its gather, so decoding two
streams at a time (`pop_two`) takes little longer than decoding one. `decoder` and `encoder` are the
loops, and `vectors` has their parts.

Both loops stop when a step could need more indices or words than there are; stream.py codes the
rest. Tables have 2^12 slots, as for all streams of 16 states and more.
"""

# mypy: ignore-errors
import numba
from numba.core.codegen import get_host_cpu_features

from trec_qcomm.jit import inner
from trec_qcomm.ops.rans.wide.decoder import (
    CURSOR,
    fill_decoder_table,
    pop_16,
    pop_16_and_16,
    pop_32,
    pop_32_and_32,
)
from trec_qcomm.ops.rans.wide.encoder import (
    fill_encoder_table,
    push_16,
    push_16_of_few,
    push_32,
    push_32_of_few,
)
from trec_qcomm.ops.rans.wide.vectors import LANES, LOG

_FEATURES = numba.config.CPU_FEATURES
AVAILABLE = "+avx512f" in (get_host_cpu_features() if _FEATURES is None else _FEATURES).split(",")
_FEW = 64  # symbols that a table in registers has


@inner
def takes(lanes):
    """Return whether this package codes streams of so many states."""
    return AVAILABLE and lanes >= LANES


if AVAILABLE:

    @inner
    def push(q, words, table, states, base, shift, last, ahead):
        """Encode all indices q of a stream: see `push_16`."""
        if states.size == LANES:
            if last < _FEW:
                return push_16_of_few(q, words, table, states, base, shift, last, ahead, q.size)
            return push_16(q, words, table, states, base, shift, last, ahead, q.size)
        if last < _FEW:
            return push_32_of_few(q, words, table, states, base, shift, last, ahead, q.size)
        return push_32(q, words, table, states, base, shift, last, ahead, q.size)

    @inner
    def pop(job):
        """Decode a stream as far as possible: see `pop_16`."""
        if job[2].size == LANES:
            pop_16(job)
        else:
            pop_32(job)

    @inner
    def pop_two(job, other):
        """Decode two streams of as many states as far as both can go on: see `pop_16`."""
        if job[2].size == LANES:
            pop_16_and_16(job, other)
        else:
            pop_32_and_32(job, other)

else:

    @inner
    def push(q, words, table, states, base, shift, last, ahead):
        """Encode nothing: `takes` no stream."""
        return 0

    @inner
    def pop(job):
        """Decode nothing: `takes` no stream."""

    @inner
    def pop_two(job, other):
        """Decode nothing: `takes` no stream."""


__all__ = [
    "AVAILABLE",
    "CURSOR",
    "LANES",
    "LOG",
    "fill_decoder_table",
    "fill_encoder_table",
    "pop",
    "pop_two",
    "push",
    "takes",
]
