"""How much smaller error-bounded rows become, by encoder, with and without distinct bags.

rANS stands for the artefact's Huffman coder: it is the entropy coder that the library has. Beside
it is a Huffman coder of the same integers, zlib's (Z_HUFFMAN_ONLY), which is in no codec.
Shapes: n rows of D values, a segment a batch. A ratio is float32 bytes of all rows of all tables
over their encoded bytes; as every table has as many, it is the harmonic mean over tables.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from examples.bench.codecs.workload import Batch, merged
from trec_qcomm.codecs import ErrorBounded
from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.ext.dual_level.error_bound import BoundClasses
from trec_qcomm.ext.dual_level.homogenization import mean_index

ENCODERS = ("bitpack", "vector_lz", "rans")
BOUNDS = ("0.01", "0.03", "classes")  # relative bounds, or those that the classes give
CLASSES = BoundClasses()


def ratios(batches: Sequence[Batch], bounds: str) -> Mapping[str, float]:
    """Return ratios by encoder, of all rows and, after `distinct_`, where a bag is sent once.

    `best` takes the smaller of vector_lz and rans for each table, `best_huffman` that of vector_lz
    and Huffman. Where bags are sent once, float32 still stands for all rows; the index by which
    the receiver repeats them stays with it, as in the library.

    Args: batches: what a rank's samples look up, a batch each.  bounds: one of BOUNDS.
    """
    once = [merged(batch) for batch in batches]
    by_name: dict[str, float] = {}
    for prefix, kind in (("", batches), ("distinct_", once)):
        raw, encoded = 0, dict.fromkeys((*ENCODERS, "huffman", "best", "best_huffman"), 0)
        for table in batches[0].rows:
            rows = [batch.rows[table] for batch in kind]
            bound = table_bound([batch.rows[table] for batch in once], bounds)
            sizes = {name: encoded_nbytes(rows, bound, name) for name in ENCODERS}
            sizes["huffman"] = sum(huffman_nbytes(each, bound) for each in rows)
            sizes["best"] = min(sizes["vector_lz"], sizes["rans"])
            sizes["best_huffman"] = min(sizes["vector_lz"], sizes["huffman"])
            raw += 4 * sum(batch.rows[table].numel() for batch in batches)
            encoded = {name: encoded[name] + sizes[name] for name in encoded}
        by_name |= {f"{prefix}{name}": raw / nbytes for name, nbytes in encoded.items()}
    return by_name


def table_bound(distinct_rows: Sequence[Tensor], bounds: str) -> float:
    """Return the relative bound of a table. Args: distinct_rows: [n, D] a batch."""
    if bounds != "classes":
        return float(bounds)
    return CLASSES.bound(CLASSES.of_index(mean_index(distinct_rows, bound=CLASSES.base)))


def encoded_nbytes(batches: Sequence[Tensor], bound: float, encoder: str) -> int:
    """Return the bytes of some batches [n, D] float32 of a table, a segment each."""
    codec = ErrorBounded(bound, encoder=encoder)  # type: ignore[arg-type]
    segments = Segments.packed([len(rows) for rows in batches], batches[0].shape[1])
    most = codec.max_nbytes(segments)
    payload = torch.empty(int(most.sum()), dtype=torch.uint8)
    encoded = codec.encode(torch.cat(list(batches)), segments, payload, exclusive_cumsum(most)[:-1])
    return int(encoded.nbytes.sum())


def huffman_nbytes(rows: Tensor, bound: float) -> int:
    """Return the bytes of a batch's integers, Huffman coded, and of their step."""
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    integers = codes(rows, bound)
    smallest = next(t for t in (np.int8, np.int16, np.int32) if _holds(t, integers))
    return len(coder.compress(integers.astype(smallest).tobytes()) + coder.flush()) + 4


def codes(rows: Tensor, bound: float) -> np.ndarray:
    """Return [n, D] int64, round(x / (2 bound (max - min))); zeros where all values are equal.

    Raises: ValueError: values that are not finite.
    """
    values = rows.double().numpy()
    if not np.isfinite(values).all():
        raise ValueError("rows: expected finite values")
    step = 2 * bound * float(values.max() - values.min())
    return np.rint(values / step).astype(np.int64) if step > 0 else np.zeros(rows.shape, np.int64)


def _holds(dtype: type[np.signedinteger], integers: np.ndarray) -> bool:
    info = np.iinfo(dtype)
    return bool(info.min <= integers.min() and integers.max() <= info.max)
