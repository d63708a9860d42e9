"""The reduction of gradients that a rule describes, and the choice of its algorithm.

Knows: rules, chunks, the model of a link. Does not know: DDP, process groups.
"""

from collections.abc import Callable, Sequence
from typing import Any

from trec_qcomm.codecs import Identity
from trec_qcomm.comm.dense.all_reduce import (
    ALGORITHMS,
    Algorithm,
    AllReduceOptions,
    FlatAlgorithm,
    Reduction,
    num_messages,
    sent_nbytes,
    sites,
)
from trec_qcomm.comm.dense.chunks import BucketChunks, Coding, ParameterShape
from trec_qcomm.comm.dense.coder import GradientTolerances
from trec_qcomm.comm.dense.low_rank.matrices import MatrixShape
from trec_qcomm.comm.dense.low_rank.reduction import LowRankReduction
from trec_qcomm.config import AllReduceRule, GradientRule
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
    codings: Sequence[Coding] | None = None,
    matrices: Sequence[MatrixShape] = (),
    make_tolerances: Callable[[BucketChunks, Sequence[str]], GradientTolerances] | None = None,
    seed: int = 0,
    measure_error: bool = False,
    ranks_per_node: int | None = None,
    intra_traffic: Traffic | None = None,
) -> Reduction:
    """Return the reduction of one rank that a rule describes.

    Args:
        rule: the rule, whose algorithm and link hold for all parameters.
        parameters: all parameters of the model, as if they were in one bucket.
        traffic, intra_traffic: counters of what is sent, see Reduction.
        codings: codecs of the values, which the parameters name by number; None: the rule's codec
            for all.
        matrices: shapes of the parameters that are sent as factors of low rank.
        make_tolerances: function that makes the rule of the codec's tolerances, from the chunks of
            all parameters and the names of the sites at which this rank encodes.
        seed: seed of stochastic rounding.
        measure_error: whether to record the largest error of what this rank encodes.
        ranks_per_node: number of adjacent ranks that share a node, for `hierarchical`.
    Raises: ValueError: rows of a length that the codec does not take, nodes that differ in size.
    """
    codings = tuple(codings or [make_coding(rule)])
    sent = sent_shapes(parameters, matrices)
    for shape in sent:
        check_dim(codings[shape.coding].codec, shape.block, repr(shape.name))
    chunks = BucketChunks(sent, world_size, codings)
    options = AllReduceOptions(
        codings=codings,
        algorithm=_algorithm(rule, chunks),
        seed=seed,
        measure=measure_error,
        ranks_per_node=ranks_per_node,
    )
    tolerances = None
    if make_tolerances is not None and not options.is_inside_one_node(world_size):
        settled = options.settled(world_size)
        tolerances = make_tolerances(chunks, sites(settled, rank, world_size))
    kept: dict[str, Any] = {
        "parameters": sent, "tolerances": tolerances, "intra_traffic": intra_traffic
    }  # fmt: skip
    if matrices:
        return LowRankReduction(options, rank, world_size, traffic, matrices=matrices, **kept)
    return Reduction(options, rank, world_size, traffic, **kept)


def sent_shapes(
    parameters: Sequence[ParameterShape], matrices: Sequence[MatrixShape]
) -> tuple[ParameterShape, ...]:
    """Return the shapes of what is sent: factors in place of some parameters."""
    factors = {matrix.name: (matrix.left, matrix.right) for matrix in matrices}
    return tuple(shape for p in parameters for shape in factors.get(p.name, (p,)))


def make_coding(rule: AllReduceRule) -> Coding:
    """Return the codecs of the values of a rule's parameters."""
    if not isinstance(rule, GradientRule):
        return Coding(codec=rule.codec, exact=Identity(), min_numel=0)
    return Coding(
        codec=rule.codec,
        exact=Identity(),
        min_numel=rule.min_numel,
        error_feedback=rule.error_feedback,
        intra=rule.intra,
    )


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

    def seconds(algorithm: FlatAlgorithm) -> float:
        most = max(sent_nbytes(algorithm, r, each, whole) for r in range(world_size))
        messages = num_messages(algorithm, world_size)
        return rule.link.transfer_s(num_messages=messages, nbytes=most)

    order: list[FlatAlgorithm] = ["two_shot", "recursive_doubling", "ring"]
    assert set(order) == set(ALGORITHMS)
    times = {algorithm: seconds(algorithm) for algorithm in order}
    limit = _AS_FAST * min(times.values())
    return next(algorithm for algorithm in order if times[algorithm] <= limit)
