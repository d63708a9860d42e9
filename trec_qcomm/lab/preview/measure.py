"""Measurements of codecs on one table's rows: bytes, decibels, seconds, the link that breaks even.

    speed-up = 1 / (1/CR + B (1/Tc + 1/Td))

is the time to send float32 rows, divided by the time to encode, send and decode them. CR is the
compression ratio, B the link, Tc and Td the throughputs of the encoder and the decoder, all three
in GB/s of float32 rows. Below 1 a codec costs more time than it saves. In this model nothing
overlaps with encoding, so the real speed-up of a codec may be larger (`CodecPreview.speed_up`).

Shapes: blocks of [n, D] float32; a block is what one rank sends one peer for the table.
Source: SC'24 (Feng, Zhang et al.), choice of the encoder by table.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trec_qcomm.core.codec import Codec, check_dim
from trec_qcomm.core.segments import Segments
from trec_qcomm.ext.planner import cost_model
from trec_qcomm.lab.sizes.rows import distinct
from trec_qcomm.testing import encode

_TIMED_NBYTES = 2**20  # least bytes of float32 rows: below, the call itself takes most of the time


@dataclass(frozen=True, kw_only=True)
class CodecPreview:
    """Figures, in a step, of one codec on the rows of one table or of several.

    Args:
        codec: name of the codec.
        raw_nbytes: float32 bytes of all rows.
        sent_nbytes: float32 bytes of the rows that are sent: fewer if equal rows are sent once.
        wire_nbytes: bytes of these rows, encoded, without frame headers.
        signal_to_noise_db: 10 log10(sum of x^2 / sum of (x - decoded)^2) over finite values; inf
            where all arrive exactly. For several tables, the least.
        encode_s, decode_s: seconds of one thread of this machine's CPU.
    """

    codec: str
    raw_nbytes: float
    sent_nbytes: float
    wire_nbytes: float
    signal_to_noise_db: float
    encode_s: float
    decode_s: float

    @property
    def saved_nbytes(self) -> float:
        """Bytes that the codec saves of the rows that are sent."""
        return self.sent_nbytes - self.wire_nbytes

    @property
    def break_even_gb_s(self) -> float:
        """GB/s of the fastest link on which the codec saves time; 0 if there is none.

        It is H (1 - 1/ratio), with H = 1 / (1/encode + 1/decode).
        """
        return max(self.saved_nbytes, 0.0) / 1e9 / (self.encode_s + self.decode_s)

    def speed_up(self, link_gb_s: float) -> float:
        """Return the speed-up over float32 on a link of so many GB/s."""
        codec_s = self.encode_s + self.decode_s
        return self.sent_nbytes / (self.wire_nbytes + 1e9 * link_gb_s * codec_s)


@dataclass(frozen=True, kw_only=True)
class TablePreview:
    """Figures of all codecs on one table's rows, or gradients, the smallest first.

    Args:
        dim: values of a row.
        num_rows, num_sent: rows of a step, and rows that are sent.
        num_nonfinite: number of NaN and inf among all values that were coded.
    """

    table: str
    dim: int
    num_rows: float
    num_sent: float
    num_nonfinite: int
    codecs: tuple[CodecPreview, ...]

    @property
    def saved_nbytes(self) -> float:
        """The most bytes of a step that one of the codecs saves."""
        return max(codec.saved_nbytes for codec in self.codecs)


def preview_table(
    table: str,
    blocks: Sequence[Tensor],
    codecs: Mapping[str, Codec],
    *,
    num_steps: float,
    distinct_rows: bool,
) -> TablePreview:
    """Measure all codecs on the rows of one table. Bytes are repeatable, seconds are not.

    Args:
        blocks: one or more of [n >= 1, D >= 1] float32.
        codecs: codecs by name.
        num_steps: number of steps of the blocks.
        distinct_rows: whether a row that repeats in a block is sent once.
    Raises: ValueError: a codec does not take these rows; the error names table and codec.
    """
    sent = [distinct(block) for block in blocks] if distinct_rows else list(blocks)
    num_rows, num_sent, dim = sum(map(len, blocks)), sum(map(len, sent)), sent[0].shape[1]
    row_nbytes = cost_model.FLOAT32_NBYTES * dim / num_steps
    previews = []
    for name, codec in codecs.items():
        where = f"table {table!r}, codec {name}"
        check_dim(codec, dim, where)
        try:
            nbytes, noise_db = bytes_and_noise(codec, sent)
            encode_s, decode_s = coding_s(codec, sent)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        previews.append(
            CodecPreview(
                codec=name,
                raw_nbytes=row_nbytes * num_rows,
                sent_nbytes=row_nbytes * num_sent,
                wire_nbytes=nbytes / num_steps,
                signal_to_noise_db=noise_db,
                encode_s=encode_s / num_steps,
                decode_s=decode_s / num_steps,
            )
        )
    return TablePreview(
        table=table,
        dim=dim,
        num_rows=num_rows / num_steps,
        num_sent=num_sent / num_steps,
        num_nonfinite=sum(int((~block.isfinite()).sum()) for block in sent),
        codecs=tuple(sorted(previews, key=lambda preview: preview.wire_nbytes)),
    )


def bytes_and_noise(codec: Codec, blocks: Sequence[Tensor]) -> tuple[int, float]:
    """Return the encoded bytes, each block coded as one segment, and the signal to noise in dB.

    The signal to noise is 10 log10(sum of x^2 / sum of (x - decoded)^2) in float64, over finite x.
    It is inf if nothing is lost, and -inf if a finite value decodes to NaN or inf.
    """
    rows = torch.cat(list(blocks))
    segments = Segments.packed([len(block) for block in blocks], rows.shape[1])
    encoded, decoded = encode(codec, rows, segments), torch.empty_like(rows)
    codec.decode(encoded, segments, decoded)
    finite = rows.isfinite()
    values, received = rows[finite].double(), decoded[finite].double()
    signal, noise = (float(x.square().sum()) for x in (values, values - received))
    return int(encoded.nbytes.sum()), _decibels(signal, noise)


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal and math.isfinite(noise) else -math.inf


def of_all_tables(tables: Sequence[TablePreview]) -> list[tuple[CodecPreview, str]]:
    """Return each codec's figures over all tables, the smallest first, and its least exact table.

    Args: tables: previews in one direction. A codec that was not tried on all of them is left out.
    """
    by_codec: dict[str, list[tuple[CodecPreview, str]]] = {}
    for table in tables:
        for preview in table.codecs:
            by_codec.setdefault(preview.codec, []).append((preview, table.table))
    sums = []
    for name, previews in by_codec.items():
        if len(previews) < len(tables):
            continue
        worst, where = min(previews, key=lambda pair: pair[0].signal_to_noise_db)
        total = {
            field: sum(getattr(preview, field) for preview, _ in previews)
            for field in ("raw_nbytes", "sent_nbytes", "wire_nbytes", "encode_s", "decode_s")
        }
        db = worst.signal_to_noise_db
        sums.append((CodecPreview(codec=name, signal_to_noise_db=db, **total), where))
    return sorted(sums, key=lambda pair: pair[0].wire_nbytes)


def coding_s(codec: Codec, blocks: Sequence[Tensor]) -> tuple[float, float]:
    """Return the seconds of encoding and of decoding, on one thread of this machine's CPU.

    They are medians of 7 calls for all blocks, each coded as one segment. If the blocks are less
    than 1 MiB, a call codes so many copies that they make 1 MiB. In training, too, small tables
    share their calls with other tables.

    Args: blocks: one or more of [n_i >= 1, D >= 1] float32 on CPU, of one D.
    """
    rows = torch.cat(list(blocks))
    copies = -(-_TIMED_NBYTES // (cost_model.FLOAT32_NBYTES * rows.numel()))
    segments = Segments.packed([len(block) for block in blocks] * copies, rows.shape[1])
    encode_s, decode_s = cost_model.coding_s(codec, rows.repeat(copies, 1), segments)
    return encode_s / copies, decode_s / copies
