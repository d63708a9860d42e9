"""Rules of the all-reduce of gradients: of replicated parameters, and of DATA_PARALLEL tables.

Knows: codecs, sections. Does not know: YAML, DDP, process groups.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from trec_qcomm.config.matching import PatternRules, patterns_of
from trec_qcomm.config.section import Section, check_sections, section
from trec_qcomm.core.codec import Codec, Contract, MaskUse, check_choice, check_dim
from trec_qcomm.core.segments import Segments

AlgorithmChoice = Literal["auto", "ring", "recursive_doubling", "two_shot", "hierarchical"]
Scope = Literal["layer", "global"]
OnResize = Literal["sum", "reset"]
LARGEST_BLOCK = 2**20
_FLOAT32_NBYTES = 4
LARGEST_RANK = 256
_FLOAT32_NBYTES = 4


@dataclass(frozen=True, kw_only=True)
class Link:
    """A rank's network in the alpha-beta model: n bytes take latency_s + n / (1e9 gb_s) seconds.

    Args: latency_s: seconds a message, >= 0.  gb_s: GB/s, > 0.
    """

    latency_s: float = 5e-5
    gb_s: float = 1.25

    def __post_init__(self) -> None:
        for known in fields(self):
            value = getattr(self, known.name)
            if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
                raise ValueError(f"{known.name}: {value!r} is not a number >= 0")
        if self.gb_s == 0:
            raise ValueError("gb_s: 0 is not a number > 0")

    def transfer_s(self, *, num_messages: int, nbytes: float) -> float:
        """Return the seconds to send messages one after the other, of so many bytes together."""
        return num_messages * self.latency_s + nbytes / (1e9 * self.gb_s)


@dataclass(frozen=True, kw_only=True)
class AllReduceRule:
    """Settings that every all-reduce of gradients has.

    Args:
        codec: codec of the values; on CUDA one that has kernels there.
        algorithm: name of the algorithm; `auto` is the fastest one by the model of `link`, of those
            that take all ranks alike.
        link: latency and bandwidth between two ranks, for `auto`.
    """

    codec: Codec
    algorithm: AlgorithmChoice = "auto"
    link: Link = field(default=Link())

    def __post_init__(self) -> None:
        if not isinstance(self.codec, Codec):
            raise ValueError(f"codec: expected a codec, got {self.codec!r}")
        if self.codec.mask_use is MaskUse.READS:
            raise ValueError(f"codec: {self.codec.name} is for the gradients of embeddings only")
        check_choice("algorithm", self.algorithm, get_args(AlgorithmChoice))
        if not isinstance(self.link, Link):
            raise ValueError(f"link: expected a Link, got {self.link!r}")


@dataclass(frozen=True, kw_only=True)
class TableGradientRule(AllReduceRule):
    """Rule of the gradients of DATA_PARALLEL tables.

    A row of a table is a row to the codec. Rows that no rank touched in a step are not sent.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm == "hierarchical":
            raise ValueError(
                "algorithm: hierarchical: for dense only; allowed: auto, ring, recursive_doubling, "
                "two_shot"
            )


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """Settings of gradients that are sent as two factors (PowerSGD, comm.dense.low_rank).

    Args: rank: number of columns of each factor; lower is smaller, and keeps less of each step.
    """

    rank: int

    def __post_init__(self) -> None:
        if type(self.rank) is not int or not 1 <= self.rank <= LARGEST_RANK:
            raise ValueError(f"rank: {self.rank!r} is not an integer in 1..{LARGEST_RANK}")

    def is_smaller(self, num_rows: int, num_columns: int) -> bool:
        """Return whether the factors of a matrix have fewer values than itself."""
        return self.rank * (num_rows + num_columns) < num_rows * num_columns


@dataclass(frozen=True, kw_only=True)
class GradientRule(AllReduceRule):
    """Rule of the gradients of replicated parameters that match one of the patterns.

    A block of adjacent values of a parameter is a row to the codec.

    Args:
        parameters: one shell pattern (`*`, `?`, `[..]`), case-sensitive, on names of parameters as
            DDP has them, or a sequence of them. It is kept as a tuple.
        block: number of values in a block, with which the codec sends less than float32.
        min_numel: smallest parameter that is coded. Smaller ones are sent as float32, and so are
            the values of a parameter behind its last whole block.
        error_feedback: whether what the codec kept back is added to the next step's gradients.
        refresh: rule that finds the codec's threshold while training; None keeps the codec's own.
        scope: `layer` finds a threshold for each parameter, `global` one for all together.
        low_rank: settings of the factors that are sent, by the codec, in place of matrices of which
            they are smaller; what they leave out is always added to the next step's gradients.
            None: no factors.
        on_resize: use of what was kept back, in a resumed run of another world size: `sum` goes on
            with the sum over all ranks, `reset` with nothing.
        intra: codec of the hop inside a node, with `algorithm: hierarchical`, whose `codec` is that
            of the hop between nodes (`cross` in files); None: float32.
    """

    parameters: Sequence[str] = ("*",)
    block: int = 128
    min_numel: int = 256
    error_feedback: bool = False
    refresh: Section | None = section("trec_qcomm.ext.dct.refresh:ThresholdRefresh")
    scope: Scope = "layer"
    low_rank: LowRank | None = None
    on_resize: OnResize = "sum"
    intra: Codec | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "parameters", patterns_of(self.parameters, "parameters"))
        check_choice("on_resize", self.on_resize, get_args(OnResize))
        for name, least in (("block", 1), ("min_numel", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name}: {value!r} is not an integer >= {least}")
        self._check_block()
        self._check_intra()
        if type(self.error_feedback) is not bool:
            raise ValueError(f"error_feedback: {self.error_feedback!r} is not true or false")
        check_choice("scope", self.scope, get_args(Scope))
        check_sections(self)
        if self.scope == "global" and self.refresh is None:
            raise ValueError("scope: global: only where refresh finds the threshold")
        if self.low_rank is not None and not isinstance(self.low_rank, LowRank):
            raise ValueError(f"low_rank: expected a LowRank, got {self.low_rank!r}")
        if self.error_feedback and self.codec.contract is Contract.EXACT:
            raise ValueError(f"error_feedback: {self.codec.name} keeps nothing back")

    def _check_intra(self) -> None:
        """Raise ValueError at a codec of the hop inside a node that cannot be one."""
        if self.intra is None:
            return
        if self.algorithm != "hierarchical":
            raise ValueError(f"intra: only with algorithm: hierarchical, not {self.algorithm}")
        if not isinstance(self.intra, Codec):
            raise ValueError(f"intra: expected a codec, got {self.intra!r}")
        if self.intra.mask_use is MaskUse.READS:
            raise ValueError(f"intra: {self.intra.name} is for the gradients of embeddings only")
        check_dim(self.intra, self.block, "block")

    def _check_block(self) -> None:
        """Raise ValueError at a block that no parameter has, or that the codec does not take or
        make smaller."""
        if self.block > LARGEST_BLOCK:
            raise ValueError(f"block: {self.block!r} is more than {LARGEST_BLOCK}")
        check_dim(self.codec, self.block, "block")
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
    """Return which of the rules under `dense` holds for a parameter's name."""
    is_list = not isinstance(rules, GradientRule)
    patterns = [rule.parameters for rule in rules_of(rules)]
    return PatternRules("dense", "parameters", "parameter", patterns, is_list)


def rules_of(rules: GradientRule | Sequence[GradientRule] | None) -> tuple[GradientRule, ...]:
    """Return the rules that a config has under `dense`, none, one or several, as a tuple."""
    if rules is None:
        return ()
    return (rules,) if isinstance(rules, GradientRule) else tuple(rules)


def check_dense_rules(rules: object) -> None:
    """Raise ValueError where `dense` is neither a rule nor a list of rules that go together.

    All rules share the messages of an all-reduce, so they have one algorithm and one link.
    """
    listed = (rules,) if isinstance(rules, GradientRule) else rules
    if not isinstance(listed, Sequence) or not all(type(rule) is GradientRule for rule in listed):
        raise ValueError(f"dense: expected a GradientRule or a list of them, got {rules!r}")
    if not listed:
        raise ValueError("dense: expected a rule, or a list of one or more rules")
    for name in ("algorithm", "link"):
        first, *others = (getattr(rule, name) for rule in listed)
        for number, other in enumerate(others, 1):
            if other != first:
                raise ValueError(
                    f"dense[{number}].{name}: {other!r}, but dense[0] has {first!r}; parameters "
                    "of several rules travel in one message, so all rules must have the same"
                )
