"""Compile the CPU kernels that a config uses, before the first step needs them.

Kernels are called with small data through the same bindings as in a step, so that numba compiles
them for the same types. Kernels that only some plans use (sums of row-wise tables, chosen rows) are
always compiled, because they take little time.

Knows: config, codecs, ops, frames. Does not know: TorchRec, process groups.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from trec_qcomm.codecs import Cast, ErrorBounded, Identity
from trec_qcomm.config import Config, GradientRule, HopCodecs
from trec_qcomm.config.gradients import AlgorithmChoice, TableGradientRule
from trec_qcomm.config.section import sections_of
from trec_qcomm.config.tables import DIRECTIONS, Direction
from trec_qcomm.core.codec import Codec, SummingCodec, encode_alone
from trec_qcomm.core.segments import VALUE_DTYPES, Encoded, Segments
from trec_qcomm.jit.once import Job, compile_once, missing
from trec_qcomm.ops.batch import rows, unique
from trec_qcomm.ops.batch.packed_ids import Bags
from trec_qcomm.ops.batch.rank_sum import rank_sum
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.wire import frame
from trec_qcomm.wire.id_messages import pack, unpack

logger = logging.getLogger("trec_qcomm")

_Replicated = TableGradientRule | None  # rule of DATA_PARALLEL tables, where there are any

# Codecs that have numba kernels. That of a user's module compiles what it has at its first use.
_COMPILED = ("cast", "identity", "rowwise", "float6", "float8", "error_bounded")

_OTHER_LABELS = {"identity": "cast", "float8": "float6"}  # codecs that share kernels


def jobs(
    config: Config,
    *,
    ids: torch.dtype = torch.int64,
    rows_dtype: torch.dtype = torch.float32,
    data_parallel: bool = True,
) -> list[Job]:
    """Return the jobs that compile a config's kernels.

    Args:
        ids: dtype of the batches' values, int32 or int64. Lengths may have either.
        rows_dtype: dtype of the lookups' rows (`output_dtype`). float16 and bfloat16 share kernels,
            which are compiled besides the kernels for float32.
        data_parallel: whether there are DATA_PARALLEL tables, or may be.
    Raises: ValueError: another dtype.
    """
    if rows_dtype not in VALUE_DTYPES:
        raise ValueError(f"rows_dtype: {rows_dtype} is not one of {VALUE_DTYPES}")
    if ids not in (torch.int32, torch.int64):
        raise ValueError(f"ids: {ids} is not torch.int32 or torch.int64")
    wanted: list[Job] = []
    if config.ids is not None or config.sync is not None:
        wanted.append(Job("ids", _use_id_messages))  # the longest
    replicated = config.data_parallel if data_parallel else None
    coding = {"encode": _use_encoder, "decode": _use_decoder}
    wanted += _jobs_of(_codecs(config, replicated), coding)
    wanted += _jobs_of(_summed_codecs(config, replicated), {"sum": _use_sums})
    wanted.append(Job("frames", _use_frames))
    if rows_dtype != torch.float32:
        codecs = (codec for codec in _row_codecs(config) if isinstance(codec, Identity | Cast))
        wanted += _jobs_of(codecs, {"16-bit rows": _use_16_bit})
        wanted.append(Job("16-bit rows", partial(_use_rows, torch.float16)))
    wanted.append(Job("rows", _use_rows))
    if any(rule.unique_bags for rule in config.embedding):
        wanted.append(Job(f"bags {ids}".replace("torch.", ""), partial(_use_bags, ids)))
    return list({job.name: job for job in wanted}.values())


def warm_up(config: Config, **options: Any) -> int:
    """Compile a config's kernels that are missing, and return how many jobs were missing.

    The log says so once, before the work begins. No collective: ranks that share a folder of
    compiled kernels share the work, whenever they come.

    Args: options: keyword arguments of `jobs`.
    """
    left = missing(jobs(config, **options))
    if left:
        logger.warning(
            "trec_qcomm: compiling CPU kernels for %s once, %d jobs of seconds each: %s. "
            "qcomm.warm_up() or python -m trec_qcomm warm-up does it ahead.",
            config.source,
            len(left),
            ", ".join(job.name for job in left),
        )
        compile_once(left)
    return len(left)


def _codecs(config: Config, replicated: _Replicated) -> Iterator[Codec]:
    yield from _row_codecs(config)
    yield from _gradient_codecs(config, replicated, get_args(AlgorithmChoice))
    for part in sections_of(config).values():
        yield from part.codecs()


def _summed_codecs(config: Config, replicated: _Replicated) -> Iterator[SummingCodec]:
    """Yield codecs of what is added up as it is decoded: rows of row-wise tables, and gradients."""
    rows = _row_codecs(config, ("forward",))
    for codec in (*rows, *_gradient_codecs(config, replicated, ("two_shot", "hierarchical"))):
        if isinstance(codec, SummingCodec):
            yield codec


def _row_codecs(config: Config, directions: Sequence[Direction] = DIRECTIONS) -> Iterator[Codec]:
    """Yield codecs of the tables, and those that extensions may give them later."""
    for rule in config.embedding:
        hops = [rule] if rule.intra == HopCodecs() else [rule, rule.intra]  # few plans have both
        yield from (getattr(hop, direction) for hop in hops for direction in directions)
        for part in sections_of(config).values():
            yield from (codec for d, codec in part.codecs_of_table(rule) if d in directions)


def _gradient_codecs(
    config: Config, replicated: _Replicated, algorithms: Sequence[AlgorithmChoice]
) -> Iterator[Codec]:
    others = (rule for part in sections_of(config).values() for rule in part.dense_rules())
    for rule in (*config.dense_rules, replicated, *others):
        if rule is not None and rule.algorithm in algorithms:
            yield rule.codec
            if isinstance(rule, GradientRule) and rule.algorithm == "hierarchical":
                yield Identity() if rule.intra is None else rule.intra


def _jobs_of(codecs: Iterable[Any], uses: Mapping[str, Callable[[Any], None]]) -> Iterator[Job]:
    """Yield a job for each use of each codec. A codec of a user's module has none."""
    for codec in codecs:
        if codec.name in _COMPILED and type(codec).__module__.partition(".")[0] == "trec_qcomm":
            label = _OTHER_LABELS.get(codec.name, codec.name)
            if isinstance(codec, ErrorBounded) and codec.encoder != "bitpack":
                label = f"{label} {codec.encoder}"
            for use, function in uses.items():
                yield Job(f"{label}: {use}", partial(function, codec))


def _use_16_bit(codec: Codec) -> None:
    values, segments = _small_rows()
    values, codec = values.half(), codec.for_values(torch.float16)
    codec.decode(encode_alone(codec, values, segments), segments, torch.empty_like(values))


def _small_rows() -> tuple[Tensor, Segments]:
    """Return rows of two segments, some of which repeat."""
    segments = Segments.packed([48, 16], 16)
    values = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    values[8:40] = values[:8].repeat(4, 1)
    return values, segments


def _use_encoder(codec: Codec) -> None:
    encode_alone(codec, *_small_rows())


def _use_decoder(codec: Codec) -> None:
    encoded, segments, out = _by_reference(codec)
    codec.decode(encoded, segments, out)


def _use_sums(codec: Any) -> None:
    encoded, segments, out = _by_reference(codec)
    twice = Encoded(encoded.payload, encoded.at.repeat(2), encoded.nbytes.repeat(2))
    codec.decode_sum(twice, segments, out)


def _by_reference(codec: Codec) -> tuple[Encoded, Segments, Tensor]:
    """Return rows that the reference wrote, so that no encoder is compiled; and memory for them."""
    values, segments = _small_rows()
    with default_backend("reference"):
        return encode_alone(codec, values, segments), segments, torch.empty_like(values)


def _use_frames() -> None:
    one = torch.ones(1, dtype=torch.int64)
    at, frame_nbytes = frame.lay_out(8 * one, [1])
    buffer = torch.zeros(sum(frame_nbytes), dtype=torch.uint8)
    fields = {"layouts": [1], "call": 0, "num_rows": one}
    frame.seal(buffer, frame_nbytes, [1], codecs=one, nbytes=8 * one, **fields)  # type: ignore[arg-type]
    frame.unseal(buffer, frame_nbytes, [1], ranks=[0], **fields)  # type: ignore[arg-type]
    frame.compact(Encoded(buffer, at, 8 * one), [1])


def _use_rows(dtype: torch.dtype = torch.float32) -> None:
    zero, one = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64)
    values = torch.zeros(4, dtype=dtype)
    chosen = rows.choose(torch.ones(1, dtype=torch.bool), zero, one, zero, 4 * one, 4 * one)
    packed = torch.empty(4, dtype=dtype)
    rows.take(values, chosen, packed)
    rows.add(packed, chosen, values)
    rank_sum(torch.zeros(2, 4, dtype=dtype), values)


def _use_id_messages() -> None:
    ids, lengths, num_bags = torch.tensor([1, 2, 4]), torch.ones(3, dtype=torch.int64), [3]
    packed = pack(Bags(ids, lengths, torch.tensor(num_bags)), [1], even_bags=3)
    unpack(packed.buffer, [0], ["feature"], num_bags)
    bags = unique.UniqueBags(torch.arange(3), torch.tensor(num_bags), torch.arange(3))
    unique.sort_by_id(bags, ids, lengths, torch.tensor(num_bags))


def _use_bags(ids: torch.dtype, lengths: torch.dtype = torch.int32) -> None:
    values = torch.tensor([1, 2, 1, 2, 3], dtype=ids)
    sizes = torch.tensor([2, 2, 1], dtype=lengths)
    num_bags, all_merged = torch.tensor([3]), torch.ones(1, dtype=torch.float64)
    bags = unique.unique_bags(values, sizes, num_bags, all_merged)
    unique.take_bags(values, sizes, bags.first)
    unique.take_bags(values, torch.ones_like(values, dtype=lengths), bags.first)  # one id each
    zero, column = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    blocks = unique.BagBlocks(zero, bags.counts, torch.tensor([4]), column, zero)
    packed, matrix = torch.zeros(4 * len(bags.first)), torch.zeros(3, 4)
    unique.expand(packed, blocks, bags.inverse.view(1, 3), matrix)
    unique.sum_by_bag(matrix, blocks, bags.inverse.view(1, 3), packed)
