"""Make the reduction of gradients that rules describe.

Knows: rules, chunks. Does not know: DDP, process groups.
"""

from collections.abc import Sequence
from functools import partial

from trec_qcomm.codecs import Identity
from trec_qcomm.comm.dense.all_reduce import AllReduceOptions, Reduction, sites
from trec_qcomm.comm.dense.chunks import Coding, ParameterShape
from trec_qcomm.comm.dense.low_rank.matrices import MatrixShape
from trec_qcomm.comm.dense.low_rank.reduction import LowRankReduction
from trec_qcomm.config import AllReduceRule, GradientRule
from trec_qcomm.core.codec import check_dim
from trec_qcomm.core.counters import Traffic


def make_reduction(
    rules: AllReduceRule | Sequence[AllReduceRule],
    parameters: Sequence[ParameterShape],
    rank: int,
    world_size: int,
    traffic: Traffic,
    *,
    matrices: Sequence[MatrixShape] = (),
    seed: int = 0,
    measure_error: bool = False,
    ranks_per_node: int | None = None,
    intra_traffic: Traffic | None = None,
) -> Reduction:
    """Return the reduction of one rank that rules describe.

    Args:
        rules: one rule, or several of one algorithm.
        parameters: all parameters of the model, as if they were in one bucket. A parameter's
            `coding` is the index of its rule.
        traffic, intra_traffic: counters of the bytes that are sent, as in Reduction.
        matrices: shapes of the parameters that are sent as factors of low rank.
        seed: seed of stochastic rounding.
        measure_error: whether to record the largest error of what this rank encodes.
        ranks_per_node: number of adjacent ranks that share a node, for `hierarchical`.
    Raises: ValueError: rows of a length that the codec does not take, nodes that differ in size.
    """
    rules = (rules,) if isinstance(rules, AllReduceRule) else tuple(rules)
    codings = tuple(_coding(rule) for rule in rules)
    sent = sent_shapes(parameters, matrices)
    for shape in sent:
        check_dim(codings[shape.coding].codec, shape.block, repr(shape.name))
    options = AllReduceOptions(
        codings=codings,
        algorithm=rules[0].algorithm,
        seed=seed,
        measure=measure_error,
        ranks_per_node=ranks_per_node,
    )
    make = partial(LowRankReduction, matrices=matrices) if matrices else Reduction
    reduction = make(
        options, rank, world_size, traffic, parameters=sent, intra_traffic=intra_traffic
    )
    refresh = [r.refresh for r in rules if isinstance(r, GradientRule) and r.refresh is not None]
    if refresh and not reduction.is_inside:
        chunks, encoding = reduction.new_chunks(sent), sites(reduction.options, rank, world_size)
        reduction.tolerances = refresh[0].gradient_tolerances(rules, chunks, encoding)
    return reduction


def sent_shapes(
    parameters: Sequence[ParameterShape], matrices: Sequence[MatrixShape]
) -> tuple[ParameterShape, ...]:
    """Return the shapes of what is sent, with factors in place of some parameters."""
    factors = {matrix.name: (matrix.left, matrix.right) for matrix in matrices}
    return tuple(shape for p in parameters for shape in factors.get(p.name, (p,)))


def _coding(rule: AllReduceRule) -> Coding:
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
