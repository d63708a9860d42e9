"""Other compressors of float32 tables, at the same absolute bounds or lossless.

Each is given every advantage. The quantizer in front of the lossless ones is compiled, writes the
smallest integers that hold all tables (int8, int16 or int32), checks no value and handles no NaN.
zstd, lz4 and blosc2 see all tables in one call, pcodec one table a call, which makes it smaller;
zfp and SZ3 get bounds that are computed outside the time. All run on one thread.

Shapes: N values of T tables, one behind the other; ends: [T] int64, where each table ends in them.
"""

import contextlib
import importlib
import importlib.metadata
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import numba
import numpy as np

BASELINE = "quantize + zstd-1"
PIP = {  # module -> its name on PyPI
    "zstandard": "zstandard",
    "lz4.block": "lz4",
    "blosc2": "blosc2",
    "pcodec": "pcodec",
    "zfpy": "zfpy",
    "pysz": "pysz",
}


class Compressor(Protocol):
    """A compressor on some rows: `encode` keeps its bytes, `decode` writes their rows to `out`.

    Args: out: [N] float32.
    """

    out: np.ndarray

    def encode(self) -> None: ...

    def decode(self) -> None: ...

    def nbytes(self) -> int: ...


@numba.njit(nogil=True, cache=True)
def table_steps(values, ends, bound):
    """Return [T] float32, twice the bound of each table, and the largest |q| of all.

    bound: a fraction of each table's range. A two-millionth of the largest |x| is taken off it:
    more than 1 / step, x / step, the step and q step are rounded by, 4 times 2^-24 of |x|, so that
    values need no check. No step where nothing is left.
    """
    steps, largest, begin = np.empty(ends.size, np.float32), np.float32(0), 0
    for t in range(ends.size):
        table = values[begin : ends[t]].view(np.int32)
        key_lo, key_hi = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
        for k in range(table.size):
            key = table[k] ^ ((table[k] >> np.int32(31)) & np.int32(0x7FFFFFFF))
            key_lo, key_hi = min(key_lo, key), max(key_hi, key)
        lo = np.int32(key_lo ^ ((key_lo >> 31) & 0x7FFFFFFF)).view(np.float32)
        hi = np.int32(key_hi ^ ((key_hi >> 31) & 0x7FFFFFFF)).view(np.float32)
        top = max(-lo, hi)
        reduced = bound * (np.float64(hi) - np.float64(lo)) - top * 2.0**-21
        steps[t] = np.float32(max(2 * reduced, 0.0))
        if steps[t] > 0:
            largest = max(largest, top / steps[t])
        begin = ends[t]
    return steps, largest


@numba.njit(nogil=True, cache=True)
def quantize(values, ends, steps, q):
    """Compute q = round(x / step), any integer type."""
    begin = 0
    for t in range(ends.size):
        inverse = np.float32(1) / steps[t] if steps[t] > 0 else np.float32(0)
        x, place = values[begin : ends[t]], q[begin : ends[t]]
        for k in range(x.size):
            rounded = np.float32(np.float32(x[k] * inverse) + np.float32(12582912.0))
            place[k] = np.int32(rounded.view(np.int32) - np.int32(0x4B400000))
        begin = ends[t]


@numba.njit(nogil=True, cache=True)
def dequantize(q, ends, steps, out):
    """Compute out = q * step."""
    begin = 0
    for t in range(ends.size):
        place, words, step = out[begin : ends[t]], q[begin : ends[t]], steps[t]
        for k in range(place.size):
            place[k] = np.float32(words[k]) * step
        begin = ends[t]


class Quantized:
    """The quantizer and a lossless compressor: compress(q) -> bytes, decompress(bytes) -> bytes."""

    def __init__(
        self,
        values: np.ndarray,
        ends: np.ndarray,
        bound: float,
        compress: Callable[[np.ndarray], Any],
        decompress: Callable[[Any], Any],
    ) -> None:
        self.values, self.ends, self.bound = values, ends, bound
        self.compress, self.decompress = compress, decompress
        _, largest = table_steps(values, ends, bound)
        types = [t for t in (np.int8, np.int16, np.int32) if largest + 1 <= np.iinfo(t).max]
        self.q, self.out = np.empty(values.size, types[0]), np.empty_like(values)

    def encode(self) -> None:
        self.steps, _ = table_steps(self.values, self.ends, self.bound)
        quantize(self.values, self.ends, self.steps, self.q)
        self.data = self.compress(self.q)

    def decode(self) -> None:
        q = np.frombuffer(self.decompress(self.data), self.q.dtype)
        dequantize(q, self.ends, self.steps, self.out)

    def nbytes(self) -> int:
        return len(self.data) + self.steps.nbytes


class QuantizedByTable(Quantized):
    """The quantizer and a lossless compressor, one call a table; decompress(bytes, q) writes q."""

    def encode(self) -> None:
        self.steps, _ = table_steps(self.values, self.ends, self.bound)
        quantize(self.values, self.ends, self.steps, self.q)
        self.data = [self.compress(q) for q in np.split(self.q, self.ends[:-1])]

    def decode(self) -> None:
        for data, q in zip(self.data, np.split(self.q, self.ends[:-1]), strict=True):
            self.decompress(data, q)
        dequantize(self.q, self.ends, self.steps, self.out)

    def nbytes(self) -> int:
        return sum(map(len, self.data)) + self.steps.nbytes


class Floats:
    """A compressor of float32 tables with bounds of its own, one call a table."""

    def __init__(
        self,
        tables: list[np.ndarray],
        bounds: list[float],
        compress: Callable[[np.ndarray, float], Any],
        decompress: Callable[[Any, tuple[int, ...]], np.ndarray],
    ) -> None:
        self.tables, self.bounds = tables, bounds
        self.compress, self.decompress = compress, decompress
        self.out = np.empty(sum(t.size for t in tables), np.float32)
        ends = np.cumsum([t.size for t in tables])
        self.places = np.split(self.out, ends[:-1])

    def encode(self) -> None:
        pairs = zip(self.tables, self.bounds, strict=True)
        self.data = [self.compress(table, bound) for table, bound in pairs]

    def decode(self) -> None:
        for data, table, place in zip(self.data, self.tables, self.places, strict=True):
            place[:] = self.decompress(data, table.shape).reshape(-1)

    def nbytes(self) -> int:
        return sum(map(len, self.data))


class Lossless:
    """A lossless compressor of the values themselves, in one call.

    `out` is what it decompresses to, not copied to a place of ours.
    """

    def __init__(
        self,
        values: np.ndarray,
        compress: Callable[[np.ndarray], Any],
        decompress: Callable[[Any], Any],
    ) -> None:
        self.values, self.out = values, np.empty_like(values)
        self.compress, self.decompress = compress, decompress

    def encode(self) -> None:
        self.data = self.compress(self.values)

    def decode(self) -> None:
        self.out = np.frombuffer(self.decompress(self.data), np.float32)

    def nbytes(self) -> int:
        return len(self.data)


def _zstd(module: ModuleType) -> tuple[Any, Any]:
    return module.ZstdCompressor(level=1).compress, module.ZstdDecompressor().decompress


def _blosc2(module: ModuleType, codec: str, level: int, itemsize: int) -> tuple[Any, Any]:
    options = {
        "codec": getattr(module.Codec, codec),
        "filters": [module.Filter.BITSHUFFLE],
        "filters_meta": [0],
        "clevel": level,
        "typesize": itemsize,
        "nthreads": 1,
    }
    return lambda q: module.compress2(q, **options), lambda b: module.decompress2(b, nthreads=1)


def _sz3(module: ModuleType, algorithm: str) -> tuple[Any, Any]:
    def compress(table: np.ndarray, bound: float) -> np.ndarray:
        config = module.szConfig(table.shape)
        config.errorBoundMode, config.absErrorBound = module.szErrorBoundMode.ABS, bound
        config.cmprAlgo = getattr(module.szAlgorithm, algorithm if bound else "LOSSLESS")
        return module.sz.compress(table, config)[0]

    return compress, lambda data, shape: module.sz.decompress(data, np.float32, shape)[0]


def _zfp(module: ModuleType) -> tuple[Any, Any]:
    def compress(table: np.ndarray, bound: float) -> bytes:
        # A tolerance of -1 is its lossless mode.
        return module.compress_numpy(table, tolerance=bound or -1.0)

    return compress, lambda data, shape: module.decompress_numpy(data)


def _pcodec(module: ModuleType) -> tuple[Any, Any]:
    standalone = importlib.import_module("pcodec.standalone")
    config = module.ChunkConfig(compression_level=4, enable_8_bit=True)
    return lambda q: standalone.simple_compress(q, config), standalone.simple_decompress_into


def _pcodec_lossless(module: ModuleType) -> tuple[Any, Any]:
    standalone = importlib.import_module("pcodec.standalone")
    config = module.ChunkConfig(compression_level=4)
    return lambda x: standalone.simple_compress(x, config), standalone.simple_decompress


# name -> (module, which class, (module, bytes an index) -> its two functions)
_BOUNDED: dict[str, tuple[str, type, Callable[[Any, int], tuple[Any, Any]]]] = {
    BASELINE: ("zstandard", Quantized, lambda m, _: _zstd(m)),
    "quantize + lz4": ("lz4.block", Quantized, lambda m, _: (m.compress, m.decompress)),
    "quantize + bitshuffle + lz4": ("blosc2", Quantized, lambda m, b: _blosc2(m, "LZ4", 5, b)),
    "quantize + bitshuffle + zstd-1": ("blosc2", Quantized, lambda m, b: _blosc2(m, "ZSTD", 1, b)),
    "quantize + pcodec": ("pcodec", QuantizedByTable, lambda m, _: _pcodec(m)),
    "zfp": ("zfpy", Floats, lambda m, _: _zfp(m)),
    "SZ3": ("pysz", Floats, lambda m, _: _sz3(m, "INTERP_LORENZO")),
    "SZ3, no prediction": ("pysz", Floats, lambda m, _: _sz3(m, "NOPRED")),
}
BOUNDED_NAMES = tuple(_BOUNDED)
# name -> (module, module -> the two functions of `Lossless`)
_LOSSLESS: dict[str, tuple[str, Callable[[Any], tuple[Any, Any]]]] = {
    "zstd-1": ("zstandard", _zstd),
    "lz4": ("lz4.block", lambda m: (m.compress, m.decompress)),
    "bitshuffle + lz4": ("blosc2", lambda m: _blosc2(m, "LZ4", 5, 4)),
    "bitshuffle + zstd-1": ("blosc2", lambda m: _blosc2(m, "ZSTD", 1, 4)),
    "pcodec": ("pcodec", _pcodec_lossless),
}
LOSSLESS_NAMES = tuple(_LOSSLESS)


def missing(name: str) -> str | None:
    """Return the pip line of a compressor that is not installed; None if it is."""
    module = (_LOSSLESS if name in _LOSSLESS else _BOUNDED)[name][0]
    try:
        importlib.import_module(module)
    except ImportError as error:
        return f"pip install {PIP[module]} ({error})"
    return None


def versions(*more: str) -> dict[str, str]:
    """Return the versions of those packages of PIP and `more` that are installed."""
    installed = {}
    for package in (*more, *PIP.values()):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
    return installed


def build(name: str, tables: list[np.ndarray], fraction: float, bounds: list[float]) -> Compressor:
    """Return a bounded compressor.

    Args:
        name: one of BOUNDED_NAMES.
        tables: [n, D] float32 each.
        fraction: error bound, as a fraction of each table's range.
        bounds: [T], the same as absolute bounds.
    """
    module_name, kind, functions = _BOUNDED[name]
    module = importlib.import_module(module_name)
    if kind is Floats:
        return Floats(tables, bounds, *functions(module, 0))
    values = np.concatenate([table.reshape(-1) for table in tables])
    ends = np.cumsum([table.size for table in tables])
    itemsize = Quantized(values, ends, fraction, bytes, bytes).q.itemsize
    compressor: Compressor = kind(values, ends, fraction, *functions(module, itemsize))
    return compressor


def build_lossless(name: str, values: np.ndarray) -> Compressor:
    """Return a lossless compressor on [N] float32, contiguous."""
    module_name, functions = _LOSSLESS[name]
    return Lossless(values, *functions(importlib.import_module(module_name)))
