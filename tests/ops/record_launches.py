"""Recorded launches of the Triton kernels of all ops, in the form that compile_kernels.py takes.

The kernels run under Triton's interpreter on a few segments of usual dims.
"""

import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from tests.ops.interpreter import fast_interpreter
from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Float8, Identity, Rowwise
from trec_qcomm.core.checks import new_flag
from trec_qcomm.core.codec import SummingCodec
from trec_qcomm.core.registry import codecs_of_16_bit_rows
from trec_qcomm.core.segments import VALUE_DTYPES, Encoded, Segments, exclusive_cumsum
from trec_qcomm.ext.dct.masks import Masks
from trec_qcomm.ops.batch import packed_ids
from trec_qcomm.ops.batch.rank_sum import rank_sum
from trec_qcomm.ops.batch.rows import add, choose, take
from trec_qcomm.ops.batch.unique import BagBlocks, expand, sum_by_bag, take_bags, unique_bags
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.wire import frame

CODECS = (
    Identity(),
    Cast("fp16"),
    Cast("bf16"),
    *(Rowwise(bits) for bits in (8, 4, 2)),
    Rowwise(4, "stochastic"),
    ErrorBounded(0.01),
    ErrorBounded(0.01, mode="abs"),
    ErrorBounded(0.01, encoder="rans"),
    ErrorBounded(0.01, mode="abs", encoder="rans"),
    Float6("e4m1", "stochastic"),
    Float6("e3m2"),
    Float8("e4m3", "stochastic"),
    Float8("e5m2"),
)
USUAL_DIMS = dict.fromkeys(CODECS, (64,)) | dict.fromkeys(
    (Cast("fp16"), Rowwise(4, "stochastic"), Float6("e4m1", "stochastic")), (64, 1, 3)
)
USUAL_DIMS |= dict.fromkeys((ErrorBounded(0.01), ErrorBounded(0.01, encoder="rans")), (64, 1))
NEVER_1 = ("num_parts",)  # of one part, rank_sum is a copy
WIDE_SIZES = ("num_rows", "num_words32", "num_values", "num_ids", "num_bags", "size")
TYPES = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.int64: "*i64", torch.int32: "*i32",
    torch.int16: "*i16", torch.uint8: "*u8", torch.int8: "*i8", torch.float16: "*fp16",
    torch.bfloat16: "*bf16", torch.bool: "*i1",
}  # fmt: skip


def record_launches(dims: dict[Any, tuple[int, ...]] | None = None, first: int = 0) -> list[dict]:
    """Return one launch for each kernel and each set of argument types, constants and options.

    Args:
        dims: the dims of rows for each codec; None: the usual ones, the first of them 64.
        first: number of the rows' first value in its memory, which begins at 16 bytes.
    """
    launches: dict[str, dict] = {}
    with fast_interpreter(), recording(launches), default_backend("gpu"):
        for codec, several in (dims or USUAL_DIMS).items():
            for dim in several:
                encode_and_decode(codec, dim, first)
                for dtype in VALUE_DTYPES[1:] if codec.name in codecs_of_16_bit_rows() else ():
                    encode_and_decode(codec.for_values(dtype), dim, first, dtype)
        launch_other_ops()
    return list(launches.values())


def variants(launches: list[dict]) -> list[dict]:
    """Return the launches, and more for each kernel: sizes of 1, and 64-bit sizes."""
    more, seen = [], set()
    for launch in launches:
        if (name := (launch["module"], launch["kernel"])) not in seen:
            seen.add(name)
            more += [with_sizes_of_1(launch), with_64_bit_sizes(launch)]
    return launches + more


def sizes_in(launch: dict) -> list[str]:
    return [name for name, kind in launch["types"].items() if kind == "i32" and "seed" not in name]


def with_sizes_of_1(launch: dict) -> dict:
    kernel = getattr(sys.modules[launch["module"]], launch["kernel"])
    never = ("dim", *NEVER_1, *(kernel.kwargs.get("do_not_specialize") or ()))
    names = [name for name in sizes_in(launch) if name not in never]
    types = {name: kind for name, kind in launch["types"].items() if name not in names}
    aligned = [name for name in launch["aligned"] if name not in names]
    constants = launch["constants"] | dict.fromkeys(names, 1)
    constants |= {"STEPS": 1} if "STEPS" in constants else {}
    return launch | {"types": types, "aligned": aligned, "constants": constants}


def with_64_bit_sizes(launch: dict) -> dict:
    wide = {name: "i64" for name in sizes_in(launch) if name in WIDE_SIZES}
    constants = launch["constants"]
    if "WIDE" in constants:
        constants = constants | {"WIDE": True}
    return launch | {"types": launch["types"] | wide, "constants": constants}


def encode_and_decode(codec, dim: int, first: int = 0, dtype=torch.float32) -> None:
    """Encode and decode rows. Args: first: number of the first value in its memory."""
    num_rows = torch.tensor([3, 0, 2, 1])
    offsets = exclusive_cumsum(num_rows)
    masks = Masks.of_all_columns(num_rows, torch.full_like(num_rows, dim))
    stride = torch.full_like(num_rows, dim)
    segments = Segments(offsets, dim, offsets[:-1] * dim, stride, notes=masks)
    values, out = (torch.randn(first + 6 * dim)[first:].view(6, dim).to(dtype) for _ in range(2))
    most = codec.max_nbytes(segments)
    payload, at = torch.zeros(int(most.sum()), dtype=torch.uint8), exclusive_cumsum(most)[:-1]
    several = [encode_frame(codec, values, segments)[0]] if codec.takes_frames else []
    if dtype == torch.float32 or not several:  # forms of 16-bit rows without frames do less
        several.append(codec.encode(values, segments, payload, at, seed=1))
    for encoded in several:
        codec.decode(encoded, segments, out)
        if isinstance(codec, SummingCodec) and dtype == torch.float32:
            twice = encoded.at.repeat(2), encoded.nbytes.repeat(2)
            frames = encoded.frames and encoded.frames.of_segments(encoded.frames.frame.repeat(2))
            codec.decode_sum(Encoded(encoded.payload, *twice, frames=frames), segments, out)


def encode_frame(codec, values, segments, seed: int = 1) -> tuple[Encoded, dict[str, Any]]:
    """Return a frame that the codec's kernels have sealed and must check, and what unseals it."""
    count, nbytes = segments.num_segments, codec.max_nbytes(segments)
    at, sizes = frame.lay_out(nbytes, [count], frame.DEVICE_ALIGNMENT)
    buffer = torch.full((sizes[0],), 0x5A, dtype=torch.uint8, device=values.device)
    fields = {"layouts": [7], "call": 70000, "num_rows": segments.num_rows}
    options = fields | {"codecs": torch.full((count,), codec.wire_id), "nbytes": nbytes}
    frames = frame.for_codecs(buffer, sizes, [count], **options).of_segments(torch.zeros_like(at))
    codec.encode(values, segments, buffer, at, seed=seed, frames=frames)
    frames = replace(frames, first=new_flag(buffer.device))
    return Encoded(buffer, at, nbytes, frames=frames), fields


def launch_other_ops() -> None:
    """Run what no codec runs: sums, distinct bags, chosen rows, frames."""
    for dtype in VALUE_DTYPES:
        rank_sum(torch.randn(3, 40).to(dtype), torch.empty(40, dtype=dtype))
    ids, lengths = torch.arange(8) % 3, torch.ones(8, dtype=torch.int64)
    groups = torch.tensor([4, 4]), torch.ones(2, dtype=torch.float64)
    for values, sizes, weights in (
        (ids, lengths, None),
        (ids, lengths, torch.ones(8)),
        (ids.int(), lengths.int(), None),
    ):
        bags = unique_bags(values, sizes, *groups, weights=weights)
        take_bags(values, sizes, bags.first, weights=weights)
    for dim in (16, 7):
        dims = torch.full((2,), dim)
        start = exclusive_cumsum(bags.counts * dims)[:-1]
        blocks = BagBlocks(start, bags.counts, dims, torch.tensor([0, dim]), torch.arange(2))
        packed, matrix = torch.randn(int((bags.counts * dims).sum())), torch.empty(4, 2 * dim)
        expand(packed, blocks, bags.inverse.view(2, 4), matrix)
        sum_by_bag(matrix, blocks, bags.inverse.view(2, 4), packed)
        first, four = torch.tensor([0, 4]), torch.tensor([4, 4])
        places = four, torch.tensor([0, dim]), torch.tensor([2 * dim, 2 * dim]), dims
        rows = choose(torch.ones(8, dtype=torch.bool), first, *places)
        for dtype in VALUE_DTYPES:
            whole, out = matrix.to(dtype), torch.empty(rows.num_values, dtype=dtype)
            take(whole, rows, out)
            add(out, rows, whole)
    launch_frames()
    launch_packed_ids()


def launch_packed_ids() -> None:
    from trec_qcomm.wire import id_messages as wire

    ids, lengths = torch.tensor([1, 2, 40, 7, 5, 6]), torch.tensor([1, 1, 1, 0, 2, 1])
    for dtype in (torch.int64, torch.int32):
        bags = packed_ids.Bags(ids.to(dtype), lengths.to(dtype), torch.tensor([3, 3]))
        for num_bags in (None, bags.num_bags):
            packed = packed_ids.encode(
                bags, [2], states_bags=num_bags is None, room=32, alignment=128
            )
            with mock.patch.object(frame, "is_on_gpu", return_value=True):
                sizes, flags = packed.nbytes, wire.STATED_BAGS
                wire.seal(packed.payload, sizes, [2], flags=flags, num_bags=0)
                wire.unseal(packed.payload, [0], 2, flags)
            packed_ids.decode(
                packed.payload, [32], packed.nbytes, num_bags, num_segments=2, dtypes=(dtype, dtype)
            )


def launch_frames() -> None:
    nbytes = torch.tensor([16, 8])
    at, sizes = frame.lay_out(nbytes + 8, [1, 1])
    payload = torch.zeros(sum(sizes), dtype=torch.uint8)
    with mock.patch.object(frame, "is_on_gpu", return_value=True):
        encoded, sizes = frame.compact(Encoded(payload, at, nbytes), [1, 1])
        table = {"layouts": [1, 2], "call": 0, "num_rows": torch.tensor([1, 1])}
        frame.seal(
            encoded.payload, sizes, [1, 1], codecs=torch.tensor([1, 1]), nbytes=nbytes, **table
        )
        announced = frame.Announced(torch.tensor([1, 1]), nbytes)
        frame.unseal(encoded.payload, sizes, [1, 1], ranks=[0, 1], announced=announced, **table)


@contextmanager
def recording(launches: dict[str, dict]):
    """Add to `launches` what is launched inside the `with` block."""
    from triton.runtime.interpreter import GridExecutor

    run = GridExecutor.__call__

    def recorded(self, *args, **options):
        launch = launch_of(self, args, options)
        launches.setdefault(repr(launch | {"aligned": None}), launch)
        return run(self, *args, **options)

    with mock.patch.object(GridExecutor, "__call__", recorded):
        yield


def launch_of(executor, args, options) -> dict:
    names = executor.arg_names
    given = dict(zip(names, args, strict=False)) | {k: v for k, v in options.items() if k in names}
    constants = {name: given.pop(name) for name in executor.constexprs}
    unspecialized = unspecialized_arguments(executor.fn)
    ones = [n for n, v in given.items() if type(v) is int and v == 1 and n not in unspecialized]
    for name in ones:
        constants[name] = given.pop(name)  # as Triton does on a GPU
    types = {name: type_of(value) for name, value in given.items()}
    aligned = [n for n, v in given.items() if n not in unspecialized and is_aligned(v)]
    return {
        "module": executor.fn.__module__,
        "kernel": executor.fn.__name__,
        "types": types,
        "aligned": aligned,
        "constants": constants,
        "options": {name: options[name] for name in ("num_warps", "maxnreg") if name in options},
    }


def is_aligned(value: torch.Tensor | float) -> bool:
    """Return whether a number is a multiple of 16, or a vector begins at 16 bytes on a GPU, as all
    of int64 do that `upload` copies."""
    if isinstance(value, torch.Tensor):
        at = value.storage_offset() * value.element_size()
        return value.dtype == torch.int64 or at % 16 == 0
    return value % 16 == 0


def unspecialized_arguments(function) -> list[str]:
    """Return the arguments that a kernel asks Triton not to specialize."""
    kernel = getattr(sys.modules[function.__module__], function.__name__)
    return kernel.kwargs.get("do_not_specialize") or []


def type_of(value) -> str:
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"
