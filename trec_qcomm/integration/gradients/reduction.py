"""Make the reduction of gradients that a rule describes.

Knows: rules, chunks. Does not know: DDP, process groups.
"""

from collections.abc import Callable, Sequence
from typing import Any

from trec_qcomm.codecs import Identity
from trec_qcomm.comm.dense.all_reduce import AllReduceOptions, Reduction, sites
from trec_qcomm.comm.dense.chunks import BucketChunks, Coding, ParameterShape
from trec_qcomm.comm.dense.coder import GradientTolerances
from trec_qcomm.comm.dense.low_rank.matrices import MatrixShape
from trec_qcomm.comm.dense.low_rank.reduction import LowRankReduction
from trec_qcomm.config import AllReduceRule, GradientRule
from trec_qcomm.core.codec import check_dim
from trec_qcomm.core.counters import Traffic


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
        rule: the rule, whose algorithm holds for all parameters.
        parameters: all parameters of the model, as if they were in one bucket.
        traffic, intra_traffic: counters of the bytes that are sent, as in Reduction.
        codings: codecs of the values; a parameter names its Coding by index. None: the rule's codec
            for all.
        matrices: shapes of the parameters that are sent as factors of low rank.
        make_tolerances: function that makes the rule of the codec's tolerances from two arguments:
            the chunks of all parameters, and the names of the sites at which this rank encodes.
        seed: seed of stochastic rounding.
        measure_error: whether to record the largest error of what this rank encodes.
        ranks_per_node: number of adjacent ranks that share a node, for `hierarchical`.
    Raises: ValueError: rows of a length that the codec does not take, nodes that differ in size.
    """
    codings = tuple(codings or [make_coding(rule)])
    sent = sent_shapes(parameters, matrices)
    for shape in sent:
        check_dim(codings[shape.coding].codec, shape.block, repr(shape.name))
    options = AllReduceOptions(
        codings=codings,
        algorithm=rule.algorithm,
        seed=seed,
        measure=measure_error,
        ranks_per_node=ranks_per_node,
    )
    tolerances = None
    if make_tolerances is not None and not options.is_inside_one_node(world_size):
        settled = options.settled(world_size)
        chunks = BucketChunks(sent, settled.num_chunks(world_size), codings)
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
    """Return the shapes of what is sent, with factors in place of some parameters."""
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
