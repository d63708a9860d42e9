"""Who takes part in bench-codec: our codecs, and what else there is for float32 rows.

A contestant makes an Opponent (opponents.py) of a Part, and tells what is wrong with the rows that
this decoded:
  ours, EXACT        other bits
  ours, BOUNDED      a value beyond the bound, without slack
  ours, others       other bits than the codec's definition (the backend `reference`) decodes
  lossless peers     other bits
  peers with a bound a value beyond it
  formats            a value further off than FBGEMM's or a cast's format allows (gpu_peers.py)

Bytes are those of the segments; neither ours nor theirs have a frame's header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import error_bounded
import gpu_peers
import numpy as np
import opponents
import torch
from error_bounded import Ours
from gpu_peers import Peer
from opponents import Opponent
from parts import Case, Part
from torch import Tensor

from trec_qcomm import Contract
from trec_qcomm.codecs import Cast, ErrorBounded, Float6, ForwardMask, Identity, Rowwise, Sign, TopK
from trec_qcomm.codecs import Threshold as Above
from trec_qcomm.core.codec import Codec, MaskUse, mask_use
from trec_qcomm.core.segments import Masks, Segments
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.testing import max_error_in_bounds

ENCODERS = ("bitpack", "vector_lz", "rans", "auto")
TOP = TopK(density=0.1, values="fp16")
KEPT = 0.01  # of all values, by threshold
FBGEMM_PIP = "pip install fbgemm-gpu-cpu"


@dataclass(frozen=True, eq=False)
class Contestant:
    """codec: None where it is not ours.  bound: of each table's range; 0: lossless; None: none is
    stated.  missing: its pip line where it is not installed.  wrong: (part, decoded [R, D]) -> what
    is wrong.  keeps_nan: whether NaN arrives."""

    name: str
    make: Callable[[Part], Opponent]
    wrong: Callable[[Part, Tensor], str | None]
    codec: Codec | None = None
    bound: float | None = None
    keeps_nan: bool = False
    missing: str | None = None


def contestants(case: Case, bound: float) -> list[Contestant]:
    """All, installed or not. Args: bound: a fraction of each table's range."""
    return [*_ours(case, bound), *_formats(), *_lossless(), *_bounded(bound)]


def example() -> Case:
    """A case that all can take part in, to ask who they are."""
    one = {"t": torch.ones(1, 1)}
    return Case("", 0, "gradients", 1, one, one)


def _ours(case: Case, bound: float) -> Iterator[Contestant]:
    codecs: dict[str, Codec] = {
        "identity": Identity(),
        "cast fp16": Cast("fp16"),
        "cast bf16": Cast("bf16"),
        "rowwise 8": Rowwise(8),
        "rowwise 4": Rowwise(4),
        "rowwise 4 stochastic": Rowwise(4, "stochastic"),
        "rowwise 2": Rowwise(2),
        "float6": Float6(),
        "float6 stochastic": Float6("e4m1", "stochastic"),
    }
    codecs |= {f"error_bounded {e}": ErrorBounded(bound, encoder=e) for e in ENCODERS}
    codecs |= {"topk 10 %": TOP}
    if case.forward is not None:
        codecs |= {"forward_mask 10 %": ForwardMask(TOP.values)}
    codecs |= {"threshold 1 %": Above(largest(case, KEPT), "int8"), "sign": Sign()}
    for name, codec in codecs.items():
        yield Contestant(
            name,
            partial(_make_ours, codec),
            partial(_wrong_of_ours, codec),
            codec,
            {Contract.EXACT: 0.0, Contract.BOUNDED: bound}.get(codec.contract),
            mask_use(codec) is not MaskUse.READS,
        )


def largest(case: Case, share: float) -> float:
    """What that share of all magnitudes is at least, to 3 digits."""
    magnitudes = torch.cat([rows.abs().flatten() for rows in case.tables.values()])
    count = max(1, int(share * len(magnitudes)))
    return float(f"{float(magnitudes.topk(count).values[-1]):.3g}")


def _make_ours(codec: Codec, part: Part) -> Ours:
    segments = part.segments
    if mask_use(codec) is MaskUse.READS:
        segments = _masked(part)
    return Ours(codec, part.rows, segments)


def _masked(part: Part) -> Segments:
    """Segments with the columns that topk kept of the rows that these gradients are of."""
    assert part.forward is not None, "only gradients have rows that topk coded"
    dims = torch.full_like(part.segments.num_rows, part.segments.dim)
    masks = Masks.of_all_columns(part.segments.num_rows, dims)
    segments = replace(part.segments, masks=masks)
    Ours(TOP, part.forward, segments).encode()
    return segments


def _wrong_of_ours(codec: Codec, part: Part, decoded: Tensor) -> str | None:
    if codec.contract is Contract.EXACT:
        return other_bits(part, decoded)
    if isinstance(codec, ErrorBounded):
        return beyond_bound(codec.bound, part, decoded)
    with default_backend("reference"):
        defined = _make_ours(codec, part)
        defined.encode()
        defined.decode()
    expected = replace(part, rows=defined.decoded)
    return None if other_bits(expected, decoded) is None else "other rows than its definition"


def other_bits(part: Part, decoded: Tensor) -> str | None:
    same = torch.equal(part.rows.view(torch.int32), decoded.view(torch.int32))
    return None if same else "other bits"


def error_over_bound(bound: float, part: Part, decoded: Tensor) -> float:
    """The worst of all tables, of the bound as our codec with this bound states it."""
    return max_error_in_bounds(ErrorBounded(bound), part.rows, decoded, part.segments)


def beyond_bound(bound: float, part: Part, decoded: Tensor) -> str | None:
    worst = error_over_bound(bound, part, decoded)
    return None if worst <= 1 else f"an error of {worst:.4g} times the bound"


class OfPeer:
    """One of gpu_peers on the rows of all tables, in one call. What it gives is not copied."""

    def __init__(self, peer: Peer, rows: Tensor) -> None:
        self.peer, self.rows, self.prepared = peer, rows, peer.prepare(rows)
        self.out = np.empty(0, np.float32)

    def encode(self) -> None:
        self.coded = self.peer.encode(self.prepared)

    def decode(self) -> None:
        made = self.peer.restore(self.peer.decode(self.coded), self.rows)
        self.out = made.reshape(-1).numpy()

    def nbytes(self) -> int:
        return self.peer.nbytes(self.coded)


def _formats() -> Iterator[Contestant]:
    for peer in gpu_peers.casts():
        yield replace(_format(peer), keeps_nan=True)
    try:
        yield from map(_format, gpu_peers.fbgemm())
    except ImportError as error:
        yield _absent("FBGEMM INT8, INT4, MX4", f"{FBGEMM_PIP} ({error})")


def _format(peer: Peer) -> Contestant:
    def make(part: Part) -> OfPeer:
        return OfPeer(peer, part.rows)

    return Contestant(peer.name, make, partial(_wrong_of_format, peer))


def _wrong_of_format(peer: Peer, part: Part, decoded: Tensor) -> str | None:
    within = (decoded - part.rows).abs() <= peer.allowed(part.rows)
    return None if bool(within.all()) else "an error that its format does not allow"


def _lossless() -> Iterator[Contestant]:
    for name in opponents.LOSSLESS_NAMES:

        def make(part: Part, name: str = name) -> Opponent:
            return opponents.build_lossless(name, part.rows.view(-1).numpy())

        line = opponents.missing(name)
        yield Contestant(name, make, other_bits, bound=0.0, keeps_nan=True, missing=line)


def _bounded(bound: float) -> Iterator[Contestant]:
    for name in opponents.NAMES:

        def make(part: Part, name: str = name) -> Opponent:
            return error_bounded.build(name, part, bound)

        line, wrong = opponents.missing(name), partial(beyond_bound, bound)
        yield Contestant(name, make, wrong, bound=bound, missing=line)


def _absent(name: str, line: str) -> Contestant:
    def never(*_: object) -> None:
        raise AssertionError(f"{name}: not installed")

    return Contestant(name, never, never, missing=line)
