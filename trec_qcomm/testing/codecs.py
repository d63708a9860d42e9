"""Checks of a codec: sizes, places, determinism, and the promise of its contract.

Knows: codecs, segments. Does not know: frames, process groups.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trec_qcomm.core.codec import Codec, Contract, adopt
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum

CANARY = 0xA5  # fills memory that a codec must write, or must leave alone


def interleaved_segments(num_rows: int, num_tables: int, dim: int, gap: int = 3) -> Segments:
    """Return segments that lie side by side in one matrix, as the tables of a batch do.

    The matrix is [num_rows, num_tables * (dim + gap)]; `gap` columns after each table belong to no
    segment.
    """
    width = num_tables * (dim + gap)
    return Segments(
        torch.arange(num_tables + 1) * num_rows,
        dim,
        torch.arange(num_tables) * (dim + gap),
        torch.full((num_tables,), width, dtype=torch.int64),
    )


def encode(codec: Codec, values: Tensor, segments: Segments, *, seed: int = 0) -> Encoded:
    """Encode rows into a buffer of exactly `max_nbytes`, which is filled with garbage beforehand.

    Args:
        values: float32 on CPU, contiguous, any shape.
        segments: which rows of `values`.
        seed: the seed of stochastic rounding.
    """
    max_sizes = codec.max_nbytes(segments)
    payload = torch.full((int(max_sizes.sum()),), CANARY, dtype=torch.uint8)
    return codec.encode(values, segments, payload, exclusive_cumsum(max_sizes)[:-1], seed=seed)


def round_trip(codec: Codec, values: Tensor, segments: Segments, *, seed: int = 0) -> Tensor:
    """Return decode(encode(values)), in the same shape; values outside all segments become NaN.

    Args:
        values: float32 on CPU, contiguous, any shape.
        segments: which rows of `values`.
        seed: the seed of stochastic rounding.
    """
    out = torch.full_like(values, math.nan)
    codec.decode(encode(codec, values, segments, seed=seed), segments, out)
    return out


def awkward_rows(dim: int) -> Tensor:
    """Return [n, dim] float32 rows that are hard to code.

    They have zeros of both signs, constants, subnormals, extremes, NaN and inf.
    """
    tiny, huge = 1e-45, torch.finfo(torch.float32).max
    plain = torch.linspace(-1, 1, dim)
    rows = [torch.zeros(dim), -torch.zeros(dim), torch.full((dim,), 0.1), plain, -plain * 1e-30]
    rows += [torch.full((dim,), tiny), plain * huge, torch.full((dim,), -huge), 1e5 + plain]
    for special in (math.nan, math.inf, -math.inf):
        row = plain.clone()
        row[dim // 2] = special
        rows += [row, torch.full((dim,), special)]
    return torch.stack(rows)


def datasets(dim: int) -> list[tuple[Tensor, Segments]]:
    """Return values and segments that tell kernels of a codec apart.

    - awkward rows
    - rows of all scales, each with many magnitudes, in segments of one row
    - rows that lie apart, with gaps of 3 and 4 values
    - random bits, in segments larger than one program of a GPU kernel handles
    - no rows
    """
    generator = torch.Generator().manual_seed(dim)
    awkward, noise = awkward_rows(dim), torch.randn(20, dim, generator=generator)
    noise *= 2.0 ** torch.randint(-20, 1, noise.shape, generator=generator)
    scaled = (noise * 10.0 ** torch.linspace(-44, 38, 20)[:, None]).clamp(-3e38, 3e38)
    bits = torch.randint(-(2**31), 2**31, (75, dim), generator=generator).to(torch.int32)
    apart, aligned = (torch.randn(9, 3 * (dim + g), generator=generator) for g in (3, 4))
    return [
        (awkward, Segments.packed([0, len(awkward) - 1, 0, 1], dim)),
        (scaled, Segments.packed([1] * 20, dim)),
        (apart, interleaved_segments(9, 3, dim)),
        (aligned, interleaved_segments(9, 3, dim, gap=4)),
        (bits.view(torch.float32), Segments.packed([2, 50, 0, 1, 22], dim)),
        (torch.empty(0, dim), Segments.packed([0, 0], dim)),
    ]


def check_codec(codec: Codec, *, dims: Sequence[int] = (1, 4, 7, 16, 64)) -> None:
    """Check the sizes, places, determinism and contract of a codec, on plain and awkward rows.

    - Sizes: never above `max_nbytes`, and exactly that if `fixed_size`.
    - Places: strided rows are read and written where they lie, and nothing beside them is touched.
      A segment decodes to the same values alone and among others.
    - Determinism: two encodings of the same rows are equal.
    - Contract: what core.codec.Contract says, and NaN and inf arrive. A codec that does not keep
      them (`keeps_nonfinite`) must be BIASED, and they must not change other rows.

    A BOUNDED codec must have the attributes that `error_bounds` reads.

    Args: dims: the numbers of values a row to try; the codec must take them.
    Raises: AssertionError: the codec breaks core.codec.Codec or its Contract.
    """
    adopt(type(codec))
    generator = torch.Generator().manual_seed(0)
    for dim in dims:
        for rows in (torch.randn(13, dim, generator=generator), awkward_rows(dim)):
            for segments in (
                Segments.packed([len(rows)], dim),
                Segments.packed([3, 0, 1, len(rows) - 4], dim),
                Segments.packed([1] * len(rows), dim),
            ):
                _check_sizes(codec, rows, segments)
                _check_contract(codec, rows, segments)
        _check_places(codec, torch.randn(5, 3 * (dim + 3), generator=generator), dim)
    empty = Segments.packed([0, 0], dims[0])
    assert round_trip(codec, torch.empty(0, dims[0]), empty).shape == (0, dims[0])


def _check_sizes(codec: Codec, rows: Tensor, segments: Segments) -> None:
    max_sizes = codec.max_nbytes(segments)
    first, second = encode(codec, rows, segments), encode(codec, rows, segments)
    assert bool((first.nbytes <= max_sizes).all()), f"{codec}: more than max_nbytes"
    if codec.fixed_size:
        assert torch.equal(first.nbytes, max_sizes), f"{codec}: fixed_size, but not of max_nbytes"
    for at, nbytes in zip(first.at.tolist(), first.nbytes.tolist(), strict=True):
        same = torch.equal(first.payload[at : at + nbytes], second.payload[at : at + nbytes])
        assert same, f"{codec}: two encodings of the same rows differ"


def _check_places(codec: Codec, matrix: Tensor, dim: int) -> None:
    """Check that strided rows are read and written in place, and nothing beside them is touched."""
    segments = interleaved_segments(len(matrix), 3, dim)
    decoded = round_trip(codec, matrix, segments)
    inside = torch.zeros_like(matrix, dtype=torch.bool)
    for s in range(segments.num_segments):
        block = segments.block(matrix, s).contiguous()
        alone = round_trip(codec, block, Segments.packed([len(block)], dim))
        segments.block(inside, s).fill_(True)
        if codec.contract is not Contract.UNBIASED:  # there, the noise depends on the place
            same = _same_bits(segments.block(decoded, s), alone)
            assert same, f"{codec}: segment {s} decodes differently among others"
    assert bool(decoded[~inside].isnan().all()), f"{codec}: wrote outside its segments"
    assert not bool(decoded[inside].isnan().any()), f"{codec}: left rows unwritten"


def _check_contract(codec: Codec, rows: Tensor, segments: Segments) -> None:
    decoded = round_trip(codec, rows, segments)
    if codec.chooses_columns:  # NaN and inf are kept first, but a row may have too many
        assert bool((rows.isnan() | ~decoded.isnan()).all()), f"{codec}: made NaN"
        kept = decoded.isinf()
        assert torch.equal(decoded[kept], rows[kept]), f"{codec}: made inf"
        had_special, has_special = ~rows.isfinite().all(1), ~decoded.isfinite().all(1)
        assert torch.equal(had_special, has_special), f"{codec}: a row lost all its NaN and inf"
        return
    if not codec.keeps_nonfinite:
        _check_rows_alone(codec, rows, decoded)
        return
    assert torch.equal(decoded.isnan(), rows.isnan()), f"{codec}: NaN did not survive"
    if codec.contract is Contract.EXACT:
        assert _same_bits(decoded, rows), f"{codec}: not EXACT"
    infinite = rows.isinf()
    assert torch.equal(decoded[infinite], rows[infinite]), f"{codec}: inf did not survive"
    if codec.contract is Contract.BOUNDED:
        error = max_error_in_bounds(codec, rows, decoded, segments)
        assert error <= 1, f"{codec}: an error of {error} times the bound"


def _check_rows_alone(codec: Codec, rows: Tensor, decoded: Tensor) -> None:
    """Check that each row decodes as it does alone: NaN and inf change no row but their own."""
    assert codec.contract is Contract.BIASED, f"{codec}: {codec.contract.name}, but loses NaN"
    one = Segments.packed([1], rows.shape[1])
    alone = torch.cat([round_trip(codec, row[None].contiguous(), one) for row in rows])
    nan = decoded.isnan()  # whose bits may depend on its place in a vector of the processor
    same = torch.equal(alone.isnan(), nan) and _same_bits(alone[~nan], decoded[~nan])
    assert same, f"{codec}: a row decodes otherwise alone than among others"


def error_bounds(codec: Codec, values: Tensor, segments: Segments) -> Tensor:
    """Return [S] float64, the error bound that a BOUNDED codec promises for each segment.

    Two attributes of the codec give the bound. With `mode` "abs", `tolerance` is the bound itself.
    With "rel", `tolerance` is a fraction of max - min over the segment's finite values, taken in
    float64.
    """
    tolerance, mode = codec.tolerance, getattr(codec, "mode", None)
    assert tolerance is not None, f"{codec}: BOUNDED, without a bound"
    assert mode in ("abs", "rel"), f"{codec}: BOUNDED, in mode {mode}"
    if mode == "abs":
        return torch.full((segments.num_segments,), tolerance, dtype=torch.float64)
    bounds = torch.zeros(segments.num_segments, dtype=torch.float64)
    for s in range(segments.num_segments):
        block = segments.block(values, s).double()
        finite = block[block.isfinite()]
        bounds[s] = tolerance * (finite.max() - finite.min()) if len(finite) else 0.0
    return bounds


def max_error_in_bounds(codec: Codec, values: Tensor, decoded: Tensor, segments: Segments) -> float:
    """Return the largest error of any finite value, in units of its segment's bound; 0 / 0 is 0.

    An error is |value - decoded| in float64. That is exact unless the error is far below the bound
    or far above it.
    """
    ratios = []
    for s, bound in enumerate(error_bounds(codec, values, segments).tolist()):
        x, y = (segments.block(t, s).double() for t in (values, decoded))
        error = (x - y)[x.isfinite()].abs()
        largest = float(error.max()) if len(error) else 0.0
        if math.isnan(largest) or not bound:
            ratios.append(math.inf if largest != 0 else 0.0)
        else:
            ratios.append(largest / bound)
    return max(ratios, default=0.0)


def check_unbiased(codec: Codec, *, num_seeds: int = 2000) -> None:
    """Check that the mean of decoded values over seeds is the input, within 6 standard errors.

    Args: num_seeds: how many seeds.
    Raises: AssertionError: a mean is farther away.
    """
    rows = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    segments = Segments.packed([4], 16)
    draws = torch.stack(
        [round_trip(codec, rows, segments, seed=s) for s in range(num_seeds)]
    ).double()
    error = (draws.mean(0) - rows).abs()
    allowed = 6 * draws.std(0) / math.sqrt(num_seeds)
    # A value that lies p steps from a code becomes the other code n p times in n draws. That 14
    # such draws are expected and none is seen has a probability of 1e-6.
    allowed += (draws - rows).abs().amax((0, 2))[:, None] * 14 / num_seeds
    assert bool((error <= allowed).all()), f"{codec}: biased by {(error / allowed).max():.1f}x"


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))
