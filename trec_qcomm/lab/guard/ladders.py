"""Ladders of codecs: the finer of two codecs, and the rungs of one table in one direction.

Finer means more bits a value in the worst case. A codec of fixed size has the bits that a row of
128 values takes. error_bounded of mode rel has log2(1 + 1 / (2 bound)) bits: so many codes lie in
the range of its rows, and rowwise of so many bits has the same largest error. Bounds of mode abs
compare only with one another, and so do thresholds, because the values decide how many bits they
take. An exact codec is finer than all others.

Knows: codecs, rules of tables. Does not know: YAML, TorchRec, when a table is moved.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import log2

from trec_qcomm.codecs import Cast, ErrorBounded, Identity, Rowwise
from trec_qcomm.config.tables import Direction, TableRule
from trec_qcomm.core.codec import Codec, Contract
from trec_qcomm.core.segments import Segments
from trec_qcomm.ext.dct import TopK
from trec_qcomm.ext.dual_level.error_bound import OnlineClasses

_DIM, _ROWS = 128, 64
_UNKNOWN_BITS = 16.0  # of a codec whose bits the values alone decide: fewer than float32's
_NEXT_BOUNDS = (4, 16)  # what a derived ladder divides an error bound by


@dataclass(frozen=True)
class Ladder:
    """Codecs that one table may have in one direction, from the coarsest to an exact one.

    Args:
        codecs: the rungs, no two alike.
        start: index of the rung that the table's rule gives. The rule's schedule, classes and
            refresh hold on this rung only.
        lowest: index of the coarsest rung to which the table may be moved.
    """

    codecs: tuple[Codec, ...]
    start: int
    lowest: int

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Calls that make the codecs."""
        return tuple(map(repr, self.codecs))

    @cached_property
    def bits(self) -> tuple[float, ...]:
        """Approximate bits a value of each rung."""
        return _sizes(self.codecs)

    @property
    def top(self) -> int:
        """Number of the exact rung."""
        return len(self.codecs) - 1

    def rung_for(self, rung: int, more_bits: float) -> int:
        """Return the next finer rung, or the first rung that sends so many bits a value more."""
        finer = range(rung + 1, self.top)
        return next((n for n in finer if self.bits[n] - self.bits[rung] >= more_bits), self.top)


def all_columns() -> Codec:
    """Return an exact codec that notes all columns for forward_mask."""
    return TopK(density=1.0, values="fp32")


def bits_a_value(codec: Codec) -> float:
    """Return the approximate bits a value of a codec, as the module says.

    If only the values decide, it is _UNKNOWN_BITS.
    """
    if isinstance(codec, ErrorBounded):
        return log2(1 + 1 / (2 * codec.bound)) if codec.mode == "rel" else _UNKNOWN_BITS
    if not codec.fixed_size or codec.follows_forward:
        return _UNKNOWN_BITS
    rows = Segments.packed([_ROWS], _DIM)
    return 8 * float(codec.max_nbytes(rows)[0]) / (_ROWS * _DIM)


def _sizes(codecs: Sequence[Codec]) -> tuple[float, ...]:
    """Return the bits of rungs. Where values alone decide them, one more halves the tolerance."""
    sizes = [bits_a_value(codec) for codec in codecs]
    unknown = [n for n, codec in enumerate(codecs) if _fineness(codec)[0] != "bits"]
    for n in unknown:
        tolerance, finest = (float(codecs[m].tolerance or 0.0) for m in (n, unknown[-1]))
        sizes[n] = max(1.0, _UNKNOWN_BITS - log2(tolerance / finest)) if finest else _UNKNOWN_BITS
    return tuple(sizes)


def is_finer(codec: Codec, other: Codec) -> bool | None:
    """Return whether a codec is finer than another one; None if they do not compare."""
    exact, other_exact = _is_exact(codec), _is_exact(other)
    if exact or other_exact:
        return exact and not other_exact
    kind, fineness = _fineness(codec)
    other_kind, other_fineness = _fineness(other)
    return fineness > other_fineness if kind == other_kind else None


def check_order(name: str, ladder: Sequence[Codec]) -> None:
    """Raise ValueError unless each codec of a ladder is finer than the one before it.

    Args: name: name of the field, for the error.
    """
    for n, (coarse, fine) in enumerate(pairwise(ladder)):
        finer = is_finer(fine, coarse)
        if finer is None:
            raise ValueError(
                f"{name}[{n + 1}]: {fine!r} and {coarse!r} before it do not compare: bounds of "
                "mode abs and thresholds stand on a ladder with their own kind and identity only"
            )
        if not finer:
            raise ValueError(
                f"{name}[{n + 1}]: {fine!r} is not finer than {coarse!r} before it; expected "
                "codecs from the coarsest to the finest"
            )


def ladder_of(rule: TableRule, direction: Direction, ladder: Sequence[Codec] | None) -> Ladder:
    """Return the rungs of a table in one direction.

    Args:
        rule: the rule that holds for the table.
        direction: forward or backward.
        ladder: codecs from the coarsest to the finest, which `check_order` accepts. None derives
            them from the rule's own codec, which is then the coarsest.
    """
    configured: Codec = getattr(rule, direction)
    keeps_masks = direction == "forward" and rule.backward.follows_forward
    exact: Codec = all_columns() if keeps_masks else Identity()
    rungs = list(_derived(rule, direction)) if ladder is None else list(ladder)
    if keeps_masks:  # another codec would leave backward without columns
        rungs = [rung for rung in rungs if rung.chooses_columns]
    if ladder is None or configured not in rungs:
        rungs = [configured, *(rung for rung in rungs if is_finer(rung, configured))]
    if not _is_exact(rungs[-1]):
        rungs.append(exact)
    start = rungs.index(configured)
    # A loss that is probed forward says nothing of gradients, so these never get coarser.
    lowest = start if direction == "backward" else 0
    return Ladder(tuple(rungs), start, lowest)


def _derived(rule: TableRule, direction: Direction) -> Iterator[Codec]:
    """Yield what is finer than the rule's own codec, where no ladder is given."""
    configured: Codec = getattr(rule, direction)
    if isinstance(configured, ErrorBounded):
        tightest = configured.bound
        if isinstance(rule.classes, OnlineClasses):
            tightest = min(tightest, rule.classes.tight)
        yield from (replace(configured, bound=tightest / divisor) for divisor in _NEXT_BOUNDS)
    elif (density := getattr(configured, "density", None)) is not None:
        for factor in (2, 4):
            if factor * density < 1:
                yield replace(configured, density=factor * density)  # type: ignore[type-var]
    elif configured.follows_forward:
        yield Cast("bf16")
    else:
        plain = Rowwise(8, "stochastic" if configured.contract is Contract.UNBIASED else "nearest")
        template = configured if isinstance(configured, Rowwise) else plain
        finer: list[Codec] = [replace(template, bits=bits) for bits in (2, 4, 8)]
        for codec in (*finer, Cast("bf16")):
            if bits_a_value(codec) >= bits_a_value(configured) + 1:  # or it is no step
                yield codec


def _is_exact(codec: Codec) -> bool:
    if codec.chooses_columns:
        return codec == all_columns()
    return codec.contract is Contract.EXACT


def _fineness(codec: Codec) -> tuple[str, float]:
    """Return what kind of number makes the codec finer, and that number."""
    if isinstance(codec, ErrorBounded) and codec.mode == "abs":
        return "abs", -codec.bound
    if codec.follows_forward:
        return "bits", 0.0
    if codec.fixed_size or isinstance(codec, ErrorBounded):
        return "bits", bits_a_value(codec)
    return "threshold", -float(codec.tolerance or 0.0)
