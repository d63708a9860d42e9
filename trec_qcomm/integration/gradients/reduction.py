"""The reduction of gradients that a rule describes, and the choice of its algorithm.

Knows: rules, chunks, the model of a link. Does not know: DDP, process groups.
"""

from collections.abc import Callable, Sequence

from trec_qcomm.codecs import Identity
from trec_qcomm.comm.dense.all_reduce import (
    ALGORITHMS,
    Algorithm,
    AllReduceOptions,
    Reduction,
    num_messages,
    sent_nbytes,
    sites,
)
from trec_qcomm.comm.dense.chunks import BucketChunks, Coding, ParameterShape
from trec_qcomm.comm.dense.coder import GradientTolerances
from trec_qcomm.comm.slots.history import SlotOptions
from trec_qcomm.config import AllReduceRule
from trec_qcomm.core.codec import check_dim
from trec_qcomm.core.counters import Traffic

_AS_FAST = 1.01  # times of algorithms up to this factor apart count as equal


def make_reduction(
    rule: AllReduceRule,
    parameters: Sequence[ParameterShape],
    rank: int,
    world_size: int,
    traffic: Traffic,
    *,
    min_numel: int = 0,
    error_feedback: bool = False,
    make_tolerances: Callable[[BucketChunks, Sequence[str]], GradientTolerances] | None = None,
    seed: int = 0,
    measure_error: bool = False,
    slots: SlotOptions | None = None,
) -> Reduction:
    """Return the reduction of one rank that a rule describes.

    Args:
        parameters: all parameters of the model, as if they were in one bucket.
        traffic: counters of what is sent.
        min_numel: smallest parameter that is coded; smaller ones are sent as float32.
        error_feedback: whether what the codec kept back is added to later gradients.
        make_tolerances: function that makes the rule of the codec's tolerances, from the chunks of
            all parameters and the names of the sites at which this rank encodes.
        seed: seed of stochastic rounding.
        measure_error: whether to record the largest error of what this rank encodes.
        slots: settings of slots; None: sizes that vary travel first.
    Raises: ValueError: rows of a length that the codec does not take.
    """
    for parameter in parameters:
        check_dim(rule.codec, parameter.block, repr(parameter.name))
    coding = Coding(codec=rule.codec, exact=Identity(), min_numel=min_numel)
    chunks = BucketChunks(tuple(parameters), world_size, coding)
    options = AllReduceOptions(
        coding=coding,
        algorithm=_algorithm(rule, chunks),
        error_feedback=error_feedback,
        seed=seed,
        measure=measure_error,
        slots=slots,
    )
    tolerances = None
    if make_tolerances is not None:
        tolerances = make_tolerances(chunks, sites(options.algorithm, rank, world_size))
    numels = {parameter.name: parameter.numel for parameter in parameters}
    return Reduction(options, rank, world_size, traffic, numels=numels, tolerances=tolerances)


def _algorithm(rule: AllReduceRule, chunks: BucketChunks) -> Algorithm:
    """Return the rule's algorithm, the fastest one for `auto`.

    The fastest is the one whose busiest rank has sent all first, by the link's model, with all
    parameters in one bucket. Times within 1 % count as equal, so that uneven chunks do not decide.
    Of equally fast ones it is the first of two_shot, recursive_doubling and ring: with 4 ranks or
    more none of the later ones quantizes a value less often.
    """
    if rule.algorithm != "auto":
        return rule.algorithm
    world_size = chunks.num_chunks
    each = [chunks.span(range(c, c + 1)).placed.frame_nbytes[0] for c in range(world_size)]
    (whole,) = chunks.span(range(world_size)).placed.frame_nbytes

    def seconds(algorithm: Algorithm) -> float:
        most = max(sent_nbytes(algorithm, r, each, whole) for r in range(world_size))
        messages = num_messages(algorithm, world_size)
        return rule.link.transfer_s(num_messages=messages, nbytes=most)

    order: list[Algorithm] = ["two_shot", "recursive_doubling", "ring"]
    assert set(order) == set(ALGORITHMS)
    times = {algorithm: seconds(algorithm) for algorithm in order}
    limit = _AS_FAST * min(times.values())
    return next(algorithm for algorithm in order if times[algorithm] <= limit)
