"""Error-bounded quantization in Triton, with the encoders bitpack and rans. Bytes of reference.py.

With bitpack, encoding is five launches. Three read all rows: for the range of each segment; for the
widths of blocks and the sizes of groups; then, when a program a segment has added these up and
written its header, to write the groups. The last is for verbatim values, which few groups have. The
sizes of segments are known after the third launch, and the host waits for no more.

With rans it is nine, as a table must be known before the first index is coded: ranges; indices,
which are kept; the window of classes that a segment begins with; how many indices are in each; the
classes and the table; words, stream by stream; sizes, for which the host waits; then what is
written where they say, and verbatim values.

Decoding takes segments of either kind in four launches: a program a segment reads the headers of
its groups, one by one, as each says where the next one is, or the table of rans; a program a stream
reads symbols; then all rows are written, those of rans by themselves. Nothing waits.

Other programs have one warp and a chunk: some groups of 1024 values of one segment, one after the
other.
Shapes: S segments, C chunks, G groups, T streams.
"""

from typing import Any

import torch
from torch import Tensor

from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.core.transfer import Download
from trec_qcomm.ops.device import launch, no_segment, words
from trec_qcomm.ops.error_bound.gpu import reading, through_indices, through_symbols, writing
from trec_qcomm.ops.error_bound.gpu.groups import GROUP, Groups
from trec_qcomm.ops.error_bound.gpu.reading import NUM_REASONS
from trec_qcomm.ops.error_bound.quantizer.gpu import NO_KEY
from trec_qcomm.ops.rans.gpu import header, table

_BLOCKS = 32
# Registers of a thread: the compiler would take 143 to measure and 226 to pack, for what is rare in
# the latter. With these, programs that read rows by 16 bytes spill only there.
_REGISTERS, _REGISTERS_TO_MEASURE = 128, 80
_FEW_GROUPS, _MANY_GROUPS = 32, 2048  # that a program of `lay_out` takes at a time


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    bounds: Tensor,
    relative: bool,
    encoder: str,
) -> Tensor:
    """Write the segments; returns their nbytes, [S] int64 on CPU. bounds: [S] float64 on CPU."""
    on = Groups.of(segments, at, bounds.view(torch.int64), values.device)
    encode_all = _encode_rans if encoder == "rans" else _encode_bitpack
    return encode_all(values, payload, on, relative)


def _over_rows(on: Groups) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of kernels that go through all rows, and of those that need few registers."""
    many = {"VECTOR": on.vector, "num_warps": 1, "maxnreg": _REGISTERS}
    return many, many | ({"maxnreg": _REGISTERS_TO_MEASURE} if on.vector == 4 else {})


def _block(on: Groups) -> dict[str, int]:
    """Of kernels that add up what groups of a segment take."""
    is_short = on.most_values <= _FEW_GROUPS * GROUP
    block = _FEW_GROUPS if is_short else _MANY_GROUPS
    return {"BLOCK": block, "num_warps": 1 if is_short else 4}


def _encode_bitpack(values: Tensor, payload: Tensor, on: Groups, relative: bool) -> Tensor:
    device = values.device
    limits, payload32 = on.extra.view(torch.float64), words(payload, torch.int32)
    found = torch.full((3, on.num_segments), NO_KEY, dtype=torch.int32, device=device)
    segment_of_chunk = torch.empty(on.num_chunks, dtype=torch.int32, device=device)
    sizes, counts = torch.empty((2, on.num_groups), dtype=torch.int32, device=device)
    places, ranks = torch.empty((2, on.num_groups), dtype=torch.int64, device=device)
    widths = torch.empty(on.num_groups * _BLOCKS, dtype=torch.uint8, device=device)
    kinds, nbytes = torch.empty((2, on.num_segments), dtype=torch.int64, device=device)
    many, few = _over_rows(on)
    launch(
        writing.find_ranges, on.num_chunks, values, found, segment_of_chunk, *on.layout,
        STEPS=on.num_segments.bit_length(), **few,
    )  # fmt: skip
    launch(
        writing.measure, on.num_chunks, values, found, limits, segment_of_chunk, sizes, counts,
        widths, *on.layout, RELATIVE=relative, **few,
    )  # fmt: skip
    launch(
        writing.lay_out, on.num_segments, values, payload, payload32, found, limits, sizes, counts,
        places, ranks, kinds, nbytes, *on.layout, RELATIVE=relative, **_block(on),
    )  # fmt: skip
    on_host = Download(nbytes)
    launch(
        writing.write, on.num_chunks, values, payload, payload32, found, limits, segment_of_chunk,
        kinds, sizes, counts, places, widths, *on.layout, RELATIVE=relative, **many,
    )  # fmt: skip
    launch(
        writing.write_verbatim, on.num_chunks, values, payload32, found, limits, segment_of_chunk,
        kinds, counts, ranks, nbytes, *on.layout, RELATIVE=relative, **many,
    )  # fmt: skip
    return on_host.wait()


def _encode_rans(values: Tensor, payload: Tensor, on: Groups, relative: bool) -> Tensor:
    device, zeros = values.device, {"dtype": torch.int32, "device": values.device}

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    segments, groups, streams = on.num_segments, on.num_groups, on.num_streams
    limits, payload32 = on.extra.view(torch.float64), words(payload, torch.int32)
    found = torch.full((5, segments), NO_KEY, dtype=torch.int32, device=device)
    segment_of_chunk = empty(on.num_chunks)
    indices, coded = empty(groups * GROUP), empty(groups * GROUP, dtype=torch.int16)
    counts, escapes = empty(2, groups)
    ranks, escape_ranks = empty(2, groups, dtype=torch.int64)
    kinds, nbytes = empty(2, segments, dtype=torch.int64)
    facts = empty(segments, header.FACTS, dtype=torch.int64)
    entries = empty(segments, header.ENTRIES, dtype=torch.int64)
    classes, sums = torch.zeros(segments, 256, **zeros), empty(segments, header.ENTRIES)
    headers = torch.zeros(segments, header.HEADER // 4, **zeros)
    states, num_words = empty(streams, 32), empty(streams)
    word_places = empty(streams, dtype=torch.int64)
    steps, one = on.num_segments.bit_length(), {"num_warps": 1}
    many, few = _over_rows(on)
    launch(
        writing.find_ranges, on.num_chunks, values, found, segment_of_chunk, *on.layout,
        STEPS=steps, **few,
    )  # fmt: skip
    launch(
        through_indices.make_indices, on.num_chunks, values, found, limits, segment_of_chunk,
        indices, found[3:], counts, *on.layout, RELATIVE=relative, **many,
    )  # fmt: skip
    launch(
        through_indices.choose_window, segments, found, limits, indices, found[3:], kinds, facts,
        *on.layout, RELATIVE=relative, **one,
    )  # fmt: skip
    launch(
        through_indices.count_classes, on.num_chunks, indices, segment_of_chunk, kinds, facts,
        classes, escapes, *on.layout, **one,
    )  # fmt: skip
    launch(
        through_indices.choose_classes, segments, kinds, facts, classes, sums,
        headers.view(torch.uint8), headers, entries, *on.layout, **one,
    )  # fmt: skip
    launch(
        through_indices.push_symbols, streams, indices, kinds, facts, entries, coded, states,
        num_words, on.streams, *on.layout, STEPS=steps, **one,
    )  # fmt: skip
    launch(
        through_indices.lay_out_rans, segments, values, payload, payload32, found, limits, kinds,
        facts, counts, ranks, escapes, escape_ranks, num_words, word_places, nbytes, on.streams,
        *on.layout, RELATIVE=relative, **_block(on),
    )  # fmt: skip
    on_host = Download(nbytes)
    launch(
        through_indices.write_rans, on.num_chunks, values, payload, words(payload, torch.int16),
        payload32, segment_of_chunk, kinds, facts, headers.view(torch.uint8), indices, escapes,
        escape_ranks, coded, states, num_words, word_places, on.streams, *on.layout, **many,
    )  # fmt: skip
    launch(
        writing.write_verbatim, on.num_chunks, values, payload32, found, limits, segment_of_chunk,
        kinds, counts, ranks, nbytes, *on.layout, RELATIVE=relative, **many,
    )  # fmt: skip
    return on_host.wait()


def decode(encoded: Encoded, segments: Segments, out: Tensor) -> Tensor:
    """Write the rows back; returns [1] int32, NUM_REASONS times the first invalid segment plus its
    reason, or -1."""
    device, payload = out.device, encoded.payload
    on = Groups.of(segments, encoded.at, encoded.nbytes, device)
    payload16, payload32 = words(payload, torch.int16), words(payload, torch.int32)

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    segment_of_chunk, kinds, used = (empty(n) for n in (on.num_chunks, *[on.num_segments] * 2))
    places = empty(on.num_groups, dtype=torch.int64)
    widths = empty(on.num_groups * _BLOCKS, dtype=torch.uint8)
    num_slots = table.most_slots(on.most_values)
    facts = empty(on.num_segments, header.FACTS, dtype=torch.int64)
    entries = empty(on.num_segments, header.ENTRIES)
    slots = empty(on.num_segments, num_slots, dtype=torch.int16)
    streams = empty(2, on.num_streams, dtype=torch.int64)  # where words begin, how many there are
    symbols = empty(on.num_groups * GROUP, dtype=torch.int16)
    escapes, escapes_of_streams = empty(on.num_groups), empty(on.num_streams)
    wrong = no_segment(device)
    many, _ = _over_rows(on)
    launch(
        reading.read_headers, on.num_segments, payload, payload16, payload32, on.extra, wrong,
        kinds, used, segment_of_chunk, places, widths, facts, entries, slots, *streams, on.streams,
        *on.layout, SLOTS=num_slots, num_warps=1,
    )  # fmt: skip
    launch(
        through_symbols.read_symbols, on.num_streams, payload16, wrong, kinds, facts, entries,
        slots, *streams, symbols, escapes, escapes_of_streams, on.streams, *on.layout,
        SLOTS=num_slots, STEPS=on.num_segments.bit_length(), num_warps=1,
    )  # fmt: skip
    launch(
        reading.read, on.num_chunks, payload32, payload32.numel(), out, on.extra, wrong, kinds,
        segment_of_chunk, places, widths, *on.layout, **many,
    )  # fmt: skip
    launch(
        through_symbols.read_rans, on.num_chunks, payload, payload16, payload32, out, on.extra,
        wrong, kinds, segment_of_chunk, facts, symbols, escapes, escapes_of_streams, on.streams,
        *on.layout, **many,
    )  # fmt: skip
    return wrong


__all__ = ["NUM_REASONS", "decode", "encode"]
