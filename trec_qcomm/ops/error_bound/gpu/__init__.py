"""Error-bounded quantization in Triton, with bitpack and rans. Same bytes as reference.py.

A segment is divided into groups of 1024 values. Unless stated otherwise, a program has one warp and
handles a chunk: up to eight groups of one segment, visited one after the other.

Encoding with bitpack takes five launches:
1. find_ranges reads all rows for the range of each segment, and so for its step;
2. measure_groups reads all rows for the widths of blocks and the sizes of groups;
3. lay_out_bitpack, one program a segment, adds these up and writes the headers;
4. write_bitpack reads all rows and writes the groups;
5. write_verbatim writes the verbatim values, which few groups have.
Sizes of segments are known after the third launch. The host waits for them and for nothing else.

Encoding with rans takes nine launches, because a segment's table must be known before its first
index is coded:
1. find_ranges;
2. quantize_groups, which keeps the indices;
3. choose_initial_classes, and 4. count_classes;
5. choose_classes, which also makes the table;
6. push_streams, one program a stream;
7. lay_out_rans, for whose sizes the host waits;
8. write_rans, and 9. write_verbatim.

Decoding takes four launches for segments of either encoder, and no wait:
1. read_headers, one program a segment, reads the table of rans, or the headers of groups, one by
   one, because each tells where the next one is;
2. pop_streams, one program a stream, reads symbols;
3. read_rows writes the rows of bitpack, and 4. read_rans_rows writes the rows of rans.

Shapes: S segments, C chunks, G groups, T streams.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.core.transfer import Download
from trec_qcomm.ops.device import launch, new_vectors, no_segment, words
from trec_qcomm.ops.error_bound.gpu import (
    decode_rans,
    decode_segments,
    encode_bitpack,
    encode_rans,
    encode_segments,
)
from trec_qcomm.ops.error_bound.gpu.grouped_batch import GROUP, GroupedBatch
from trec_qcomm.ops.error_bound.quantizer.gpu import NO_KEY
from trec_qcomm.ops.rans.gpu import coding_tables, header

_BLOCKS = 32
# Registers a thread may use, by what a kernel does. Unlimited, the compiler would take 143 to
# measure groups and 226 to write them, for rare cases. With fewer than these, it spills.
_ALL = 255
_TO_READ_HEADERS, _TO_MEASURE, _TO_READ, _TO_READ_RANS = 128, 80, 144, 216
_TO_WRITE, _TO_WRITE_VERBATIM = 168, 192
_FEW_GROUPS, _MANY_GROUPS = 32, 2048  # groups that a program which adds up sizes takes at a time


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    bounds: Tensor,
    relative: bool,
    encoder: str,
    nbytes: Tensor,
) -> tuple[int, None]:
    """Write the segments, and their nbytes, [S] int64 on CPU.

    Returns: -1, because no value is refused; and None, because flushed values are not counted.

    Args: bounds: [S] float64 on CPU.
    Raises: ValueError: an encoder that has no kernels.
    """
    if encoder not in _ENCODERS:
        raise ValueError(f"encoder: {encoder!r} is not one of {tuple(_ENCODERS)} on a GPU")
    batch = GroupedBatch.from_segments(segments, at, bounds.view(torch.int64), values.device)
    nbytes.copy_(_ENCODERS[encoder](values, payload, batch, relative))
    return -1, None


def _row_options(values: Tensor, batch: GroupedBatch, registers: int) -> dict[str, Any]:
    """Launch options of kernels that go through all rows."""
    vector = batch.vector if values.data_ptr() % 16 == 0 else 1
    registers = registers if vector == 4 else _ALL  # rows of odd places, which are rare
    return {"VECTOR": vector, "num_warps": 1, "maxnreg": registers}


def _sum_options(batch: GroupedBatch) -> dict[str, int]:
    """Launch options of kernels that add up the sizes of a segment's groups."""
    is_short = batch.max_values <= _FEW_GROUPS * GROUP
    block = _FEW_GROUPS if is_short else _MANY_GROUPS
    return {"BLOCK": block, "num_warps": 1 if is_short else 4}


def _encode_bitpack(values: Tensor, payload: Tensor, batch: GroupedBatch, relative: bool) -> Tensor:
    device = values.device
    bounds, payload32 = batch.bounds_or_nbytes.view(torch.float64), words(payload, torch.int32)
    range_keys = torch.full((3, batch.num_segments), NO_KEY, dtype=torch.int32, device=device)
    segment_of_chunk = torch.empty(batch.num_chunks, dtype=torch.int32, device=device)
    pair, int32, int64 = partial(new_vectors, 2, device=device), torch.int32, torch.int64
    group_nbytes, verbatim_counts = pair(batch.num_groups, dtype=int32)
    group_places, verbatim_before = pair(batch.num_groups, dtype=int64)
    block_widths = torch.empty(batch.num_groups * _BLOCKS, dtype=torch.uint8, device=device)
    kinds, nbytes = pair(batch.num_segments, dtype=int64)
    measure_options = _row_options(values, batch, _TO_MEASURE)
    launch(
        encode_segments.find_ranges, batch.num_chunks, values, range_keys, segment_of_chunk,
        *batch.layout, STEPS=batch.num_segments.bit_length(), **measure_options,
    )  # fmt: skip
    launch(
        encode_bitpack.measure_groups, batch.num_chunks, values, range_keys, bounds,
        segment_of_chunk, group_nbytes, verbatim_counts, block_widths, *batch.layout,
        RELATIVE=relative, **measure_options,
    )  # fmt: skip
    launch(
        encode_bitpack.lay_out_bitpack, batch.num_segments, values, payload, payload32, range_keys,
        bounds, group_nbytes, verbatim_counts, group_places, verbatim_before, kinds, nbytes,
        *batch.layout, RELATIVE=relative, **_sum_options(batch),
    )  # fmt: skip
    sizes = Download(nbytes)
    launch(
        encode_bitpack.write_bitpack, batch.num_chunks, values, payload, payload32, range_keys,
        bounds, segment_of_chunk, kinds, group_nbytes, verbatim_counts, group_places, block_widths,
        *batch.layout, RELATIVE=relative, **_row_options(values, batch, _TO_WRITE),
    )  # fmt: skip
    launch(
        encode_segments.write_verbatim, batch.num_chunks, values, payload32, range_keys, bounds,
        segment_of_chunk, kinds, verbatim_counts, verbatim_before, nbytes, *batch.layout,
        RELATIVE=relative, **_row_options(values, batch, _TO_WRITE_VERBATIM),
    )  # fmt: skip
    return sizes.wait()


def _encode_rans(values: Tensor, payload: Tensor, batch: GroupedBatch, relative: bool) -> Tensor:
    device, zeros = values.device, {"dtype": torch.int32, "device": values.device}

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    segments, groups, streams = batch.num_segments, batch.num_groups, batch.num_streams
    bounds, payload32 = batch.bounds_or_nbytes.view(torch.float64), words(payload, torch.int32)
    keys = torch.full((5, segments), NO_KEY, dtype=torch.int32, device=device)
    range_keys, index_keys = keys[:3], keys[3:]
    segment_of_chunk = empty(batch.num_chunks)
    indices, stream_words = empty(groups * GROUP), empty(groups * GROUP, dtype=torch.int16)
    pair = partial(new_vectors, 2, device=device)
    verbatim_counts, group_escapes = pair(groups, dtype=torch.int32)
    verbatim_before, escapes_before = pair(groups, dtype=torch.int64)
    kinds, nbytes = pair(segments, dtype=torch.int64)
    fields = empty(segments, header.NUM_FIELDS, dtype=torch.int64)
    entries = empty(segments, header.NUM_ENTRIES, dtype=torch.int64)
    class_counts, sums = torch.zeros(segments, 256, **zeros), empty(segments, header.NUM_ENTRIES)
    headers = torch.zeros(segments, header.HEADER_NBYTES // 4, **zeros)
    states, num_words = empty(streams, 32), empty(streams)
    word_places = empty(streams, dtype=torch.int64)
    steps, one_warp = batch.num_segments.bit_length(), {"num_warps": 1}
    row_options = _row_options(values, batch, _TO_READ)
    measure_options = _row_options(values, batch, _TO_MEASURE)
    launch(
        encode_segments.find_ranges, batch.num_chunks, values, range_keys, segment_of_chunk,
        *batch.layout, STEPS=steps, **measure_options,
    )  # fmt: skip
    launch(
        encode_rans.quantize_groups, batch.num_chunks, values, range_keys, bounds, segment_of_chunk,
        indices, index_keys, verbatim_counts, *batch.layout, RELATIVE=relative, **row_options,
    )  # fmt: skip
    launch(
        encode_rans.choose_initial_classes, segments, range_keys, bounds, indices, index_keys,
        kinds, fields, *batch.layout, RELATIVE=relative, **one_warp,
    )  # fmt: skip
    launch(
        encode_rans.count_classes, batch.num_chunks, indices, segment_of_chunk, kinds, fields,
        class_counts, group_escapes, *batch.layout, **one_warp,
    )  # fmt: skip
    launch(
        encode_rans.choose_classes, segments, kinds, fields, class_counts, sums,
        headers.view(torch.uint8), headers, entries, *batch.layout, **one_warp,
    )  # fmt: skip
    launch(
        encode_rans.push_streams, streams, indices, kinds, fields, entries, stream_words, states,
        num_words, batch.stream_offsets, *batch.layout, STEPS=steps, **one_warp,
    )  # fmt: skip
    launch(
        encode_rans.lay_out_rans, segments, values, payload, payload32, range_keys, bounds, kinds,
        fields, verbatim_counts, verbatim_before, group_escapes, escapes_before, num_words,
        word_places, nbytes, batch.stream_offsets, *batch.layout, RELATIVE=relative,
        **_sum_options(batch),
    )  # fmt: skip
    sizes = Download(nbytes)
    launch(
        encode_rans.write_rans, batch.num_chunks, values, payload, words(payload, torch.int16),
        payload32, segment_of_chunk, kinds, fields, headers.view(torch.uint8), indices,
        group_escapes, escapes_before, stream_words, states, num_words, word_places,
        batch.stream_offsets, *batch.layout, **row_options,
    )  # fmt: skip
    launch(
        encode_segments.write_verbatim, batch.num_chunks, values, payload32, range_keys, bounds,
        segment_of_chunk, kinds, verbatim_counts, verbatim_before, nbytes, *batch.layout,
        RELATIVE=relative, **_row_options(values, batch, _TO_WRITE_VERBATIM),
    )  # fmt: skip
    return sizes.wait()


_ENCODERS = {"bitpack": _encode_bitpack, "rans": _encode_rans}


def decode(encoded: Encoded, segments: Segments, out: Tensor) -> Tensor:
    """Write the rows back.

    Returns: [1] int32 on the device: -1, or NUM_REASONS times the index of the first invalid
             segment, plus the reason (cpu.BAD_SIZE and others).
    """
    device, payload = out.device, encoded.payload
    batch = GroupedBatch.from_segments(segments, encoded.at, encoded.nbytes, device)
    payload16, payload32 = words(payload, torch.int16), words(payload, torch.int32)

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    nbytes = batch.bounds_or_nbytes
    segment_of_chunk = empty(batch.num_chunks)
    kinds, sinks = empty(batch.num_segments), empty(batch.num_segments)
    group_places = empty(batch.num_groups, dtype=torch.int64)
    block_widths = empty(batch.num_groups * _BLOCKS, dtype=torch.uint8)
    num_slots = coding_tables.max_slots(batch.max_values)
    fields = empty(batch.num_segments, header.NUM_FIELDS, dtype=torch.int64)
    entries = empty(batch.num_segments, header.NUM_ENTRIES)
    slots = empty(batch.num_segments, num_slots, dtype=torch.int16)
    word_places, word_counts = new_vectors(2, batch.num_streams, dtype=torch.int64, device=device)
    symbols = empty(batch.num_groups * GROUP, dtype=torch.int16)
    group_escapes, stream_escapes = empty(batch.num_groups), empty(batch.num_streams)
    first_invalid = no_segment(device)
    row_options = _row_options(out, batch, _TO_READ)
    launch(
        decode_segments.read_headers, batch.num_segments, payload, payload16, payload32, nbytes,
        first_invalid, kinds, sinks, segment_of_chunk, group_places, block_widths, fields, entries,
        slots, word_places, word_counts, batch.stream_offsets, *batch.layout, num_slots,
        num_warps=1, maxnreg=_TO_READ_HEADERS,
    )  # fmt: skip
    launch(
        decode_rans.pop_streams, batch.num_streams, payload16, first_invalid, kinds, fields,
        entries, slots, word_places, word_counts, symbols, group_escapes, stream_escapes,
        batch.stream_offsets, *batch.layout, num_slots, STEPS=batch.num_segments.bit_length(),
        num_warps=1,
    )  # fmt: skip
    launch(
        decode_segments.read_rows, batch.num_chunks, payload32, payload32.numel(), out, nbytes,
        first_invalid, kinds, segment_of_chunk, group_places, block_widths, *batch.layout,
        **row_options,
    )  # fmt: skip
    launch(
        decode_rans.read_rans_rows, batch.num_chunks, payload, payload16, payload32, out, nbytes,
        first_invalid, kinds, segment_of_chunk, fields, symbols, group_escapes, stream_escapes,
        batch.stream_offsets, *batch.layout, **_row_options(out, batch, _TO_READ_RANS),
    )  # fmt: skip
    return first_invalid
