"""Rules of the all-reduce of gradients: of replicated parameters, and of DATA_PARALLEL tables.

Knows: codecs, sections. Does not know: YAML, DDP, process groups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from trec_qcomm.config.matching import PatternRules, Patterns
from trec_qcomm.config.section import At, Section, check_sections
from trec_qcomm.core.codec import Codec, Contract, check_dim
from trec_qcomm.core.fields import Range, check_fields
from trec_qcomm.core.segments import Segments

AlgorithmChoice = Literal["two_shot", "ring", "recursive_doubling", "hierarchical"]
Scope = Literal["layer", "global"]
OnResize = Literal["sum", "reset"]
LARGEST_BLOCK = 2**20
LARGEST_RANK = 256
_FLOAT32_NBYTES = 4


def check_gradient_codec(where: str, codec: Codec) -> None:
    """Raise ValueError at a codec that only works on gradients of a table's rows."""
    if codec.follows_forward:
        raise ValueError(f"{where}: {codec.name} is for the gradients of embeddings only")


@dataclass(frozen=True, kw_only=True)
class AllReduceRule:
    """Settings that every all-reduce of gradients has.

    Args:
        codec: codec of the values. On CUDA the rule needs NCCL, and a codec of fixed size that has
            GPU kernels: not `error_bounded`, `threshold` and `topk` of a threshold.
        algorithm: name of the algorithm; `hierarchical` for replicated parameters only. Two ranks
            use `recursive_doubling` in place of `two_shot` if codecs are of fixed size.
        own_group: whether gradients on a GPU have an NCCL group of their own, one for each DDP, so
            that rows need not wait for them. All ranks need NCCL_LAUNCH_ORDER_IMPLICIT=1 in the
            environment, which keeps the two groups from waiting for each other. On a CPU they
            always have one.
    """

    codec: Codec
    algorithm: AlgorithmChoice = "two_shot"
    own_group: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        check_gradient_codec("codec", self.codec)


@dataclass(frozen=True, kw_only=True)
class TableGradientRule(AllReduceRule):
    """Rule of the gradients of DATA_PARALLEL tables.

    A row of a table is a row to the codec. Rows that no rank touched in a step are not sent.
    Without such a rule DDP sends whole tables. The algorithm `hierarchical` is for `dense` only.
    """

    algorithm: Literal["two_shot", "ring", "recursive_doubling"] = "two_shot"


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """Settings of gradients that are sent as two factors (PowerSGD).

    A gradient has n rows (the parameter's first dimension) and m columns (all others). It is sent
    as two matrices, n x rank and m x rank, and the rule's codec codes both. What the factors leave
    out is always added to the next step's gradients. `error_feedback` holds for parameters that are
    sent whole: vectors, and matrices whose factors are no smaller.

    Each of the two factors needs a message, so latency counts twice. A checkpoint has a residual
    and a factor for each parameter.

    Args: rank: number of columns of each factor; lower is smaller, and keeps less of each step. At
        least one parameter of the rule must be larger than its factors.
    """

    rank: Annotated[int, Range(1, LARGEST_RANK)]

    def __post_init__(self) -> None:
        check_fields(self)

    def is_smaller(self, num_rows: int, num_columns: int) -> bool:
        """Return whether the factors of a matrix have fewer values than the matrix."""
        return self.rank * (num_rows + num_columns) < num_rows * num_columns


@dataclass(frozen=True, kw_only=True)
class GradientRule(AllReduceRule):
    """Rule of the gradients of replicated parameters that match one of the patterns.

    A block of adjacent values of a parameter is a row to the codec. All rules must have the same
    `algorithm` and `own_group`, because their parameters travel in the same messages.

    Args:
        parameters: one shell pattern (`*`, `?`, `[..]`), or a sequence of patterns, kept as a
            tuple. Patterns are case-sensitive and match names as `named_parameters()` of the module
            inside DDP has them. A pattern that matches no parameter that DDP reduces is an error,
            and so is a rule whose parameters all have an earlier rule.
        block: number of values in a block. With this block the codec must send less than float32,
            and some parameter must have so many values. On a GPU at most 8192.
        min_numel: smallest parameter that is coded, in values. Smaller parameters are sent as
            float32, and so are the values of a parameter after its last whole block.
        error_feedback: whether the codec's error is added to the next step's gradients. Thresholds
            need it. With Adam it made 8, 4 and 2 bits worse (examples/papers/README.md).
        refresh: rule that finds the codec's threshold while training, for `threshold`, or for
            `topk` with a threshold > 0; None keeps the codec's own threshold.
        scope: `layer` finds a threshold for each parameter, `global` one for all parameters of the
            rule; `global` only with `refresh`.
        low_rank: settings of the two factors that are coded and sent in place of a matrix, where
            they are smaller. What they leave out is always added to the next step's gradients.
            None: no factors.
        on_resize: what a resumed run of another world size does with saved residuals: `sum` goes on
            with their sum over all ranks, `reset` with zeros.
        intra: codec of the hop inside a node, with `algorithm: hierarchical`; None: float32. The
            rule's `codec` is then the codec of the hop between nodes (`cross` in files).
    """

    parameters: Patterns = ("*",)
    block: Annotated[int, Range(1, LARGEST_BLOCK)] = 128
    min_numel: Annotated[int, Range(0)] = 256
    error_feedback: bool = False
    refresh: Annotated[Section, At("trec_qcomm.ext.dct.refresh:ThresholdRefresh")] | None = None
    scope: Scope = "layer"
    low_rank: LowRank | None = None
    on_resize: OnResize = "sum"
    intra: Codec | None = None

    other_keys: ClassVar[Mapping[str, str]] = {"cross": "codec"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sections(self)
        check_dim(self.codec, self.block, "block")
        self._check_size()
        if self.intra is not None:
            if self.algorithm != "hierarchical":
                raise ValueError(f"intra: only with algorithm: hierarchical, not {self.algorithm}")
            check_gradient_codec("intra", self.intra)
            check_dim(self.intra, self.block, "block")
        if self.scope == "global" and self.refresh is None:
            raise ValueError("scope: global: only where refresh finds the threshold; else layer")
        if self.error_feedback and self.codec.contract is Contract.EXACT:
            raise ValueError(f"error_feedback: {self.codec.name} keeps nothing back: leave it out")

    @classmethod
    def fields_of_keys(cls, data: Mapping[str, Any]) -> Mapping[str, str]:
        """Return {key: field} of a mapping: the key `cross` beside `intra` is the field `codec`.

        Raises: ValueError: `cross` without `algorithm: hierarchical`, `cross` beside `codec`, or
            `algorithm: hierarchical` with neither.
        """
        if "cross" not in data:
            if data.get("algorithm") == "hierarchical" and "codec" not in data:
                raise ValueError("cross: missing; give the codec of the hop between nodes")
            return {}
        if data.get("algorithm") != "hierarchical":
            raise ValueError("cross: only with algorithm: hierarchical; else it is codec")
        if "codec" in data:
            raise ValueError("cross: is the same as codec; give one of them")
        return cls.other_keys

    def keys_of_fields(self) -> dict[str, str]:
        """Return {field: key}, the inverse of `fields_of_keys`."""
        return {"codec": "cross"} if self.algorithm == "hierarchical" else {}

    def _check_size(self) -> None:
        """Raise ValueError at a block with which the codec sends more than float32."""
        nbytes = _nbytes_a_value(self.codec, self.block)
        if nbytes >= _FLOAT32_NBYTES:
            sizes = range(self.block, LARGEST_BLOCK)
            least = next(n for n in sizes if _nbytes_a_value(self.codec, n) < _FLOAT32_NBYTES)
            raise ValueError(
                f"block: {self.block!r}: {self.codec.name} sends {nbytes:.3g} bytes for a value, "
                f"more than float32; allowed with it: {least} to {LARGEST_BLOCK}"
            )


def _nbytes_a_value(codec: Codec, block: int) -> float:
    """Return the bytes that a codec sends for a value; 0 if it depends on the values."""
    if not codec.fixed_size or codec.contract is Contract.EXACT:
        return 0.0
    num_rows = 1024
    (nbytes,) = codec.max_nbytes(Segments.packed([num_rows], block)).tolist()
    return float(nbytes) / (num_rows * block)


def parameter_patterns(rules: GradientRule | Sequence[GradientRule]) -> PatternRules:
    """Return the patterns of the rules under `dense`, which say what rule holds for a parameter."""
    is_list = not isinstance(rules, GradientRule)
    patterns = [rule.parameters for rule in rules_of(rules)]
    return PatternRules("dense", "parameters", "parameter", patterns, is_list)


def rules_of(rules: GradientRule | Sequence[GradientRule] | None) -> tuple[GradientRule, ...]:
    """Return the rules that a config has under `dense` as a tuple: none, one or several."""
    if rules is None:
        return ()
    return (rules,) if isinstance(rules, GradientRule) else tuple(rules)


def check_dense_rules(rules: Sequence[GradientRule]) -> None:
    """Raise ValueError if the rules under `dense` do not fit one another.

    All rules share the messages of an all-reduce, so they must have one algorithm and group.
    """
    first, *others = rules
    for number, other in enumerate(others, 1):
        for name in ("algorithm", "own_group"):
            ours, theirs = getattr(first, name), getattr(other, name)
            if ours != theirs:
                raise ValueError(
                    f"dense[{number}].{name}: {theirs!r}, but dense[0] has {ours!r}; parameters of "
                    "several rules travel in one message, so all rules must have the same"
                )
