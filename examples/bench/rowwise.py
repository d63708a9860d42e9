"""Row-wise encode and decode on this CPU, beside FBGEMM's operators. One JSON object a case.

    python examples/bench/rowwise.py
    python examples/bench/rowwise.py --rows 2048 --dim 128 --tables 26 --repeats 30

Rows lie as TorchRec's lookup leaves them: [rows, tables * dim], one segment a table. `fbgemm` is
its operator alone on contiguous rows; `fbgemm_backend` adds what it would need to serve as our
backend: the copy of each strided table and the power of two (its other layout of a row not even
counted). All numbers are GB/s of float32
rows, median of interleaved repeats, one thread. A case that decodes wrongly is not timed.
"""

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable

import fbgemm_gpu  # noqa: F401  registers torch.ops.fbgemm
import torch

from trec_qcomm.codecs import Rowwise
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.testing import interleaved_segments

OPS = torch.ops.fbgemm


def fbgemm_encode(rows: torch.Tensor, bits: int) -> torch.Tensor:
    """[n, D] float32, contiguous -> fused rows."""
    if bits == 8:
        return OPS.FloatToFused8BitRowwiseQuantized(rows)
    return OPS.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, bits)


def fbgemm_decode(fused: torch.Tensor, bits: int) -> torch.Tensor:
    """Fused rows -> [n, D] float32."""
    if bits == 8:
        return OPS.Fused8BitRowwiseQuantizedToFloat(fused)
    return OPS.FusedNBitRowwiseQuantizedSBHalfToFloat(fused, bits)


class Case:
    """One bit width on one matrix: closures to time, after a check of what they give."""

    def __init__(self, values: torch.Tensor, segments: Segments, bits: int) -> None:
        self.values, self.segments, self.bits = values, segments, bits
        self.codec, self.noisy = Rowwise(bits), Rowwise(bits, "stochastic")
        sizes = self.codec.max_nbytes(segments)
        self.at = exclusive_cumsum(sizes)[:-1]
        self.payload = torch.empty(int(sizes.sum()), dtype=torch.uint8)
        self.encoded = Encoded(self.payload, self.at, sizes)
        self.out = torch.empty_like(values)
        blocks = [segments.block(values, s) for s in range(segments.num_segments)]
        self.blocks = blocks
        self.contiguous = torch.cat(blocks)
        self.fused = fbgemm_encode(self.contiguous * 1024, bits)

    def check(self) -> None:
        """Raise unless every value comes back within half a step (and float rounding)."""
        self.codec.encode(self.values, self.segments, self.payload, self.at)
        self.codec.decode(self.encoded, self.segments, self.out)
        for s, block in enumerate(self.blocks):
            step = (block.amax(1) - block.amin(1)) / (2**self.bits - 1)
            error = (self.segments.block(self.out, s) - block).abs().amax(1)
            if bool((error > step * 0.51 + block.abs().amax(1) * 2**-10).any()):
                raise RuntimeError(f"rowwise {self.bits}: decodes wrongly, not timed")

    def backend_encode(self) -> None:
        """FBGEMM as our backend would have to call it: per table a copy, scaled."""
        for block in self.blocks:
            fbgemm_encode(block * 1024.0, self.bits)

    def backend_decode(self) -> None:
        """The same for decode: scaled back and put in place."""
        rows = self.fused.split(len(self.blocks[0]))
        for s, fused in enumerate(rows):
            self.segments.block(self.out, s).copy_(fbgemm_decode(fused, self.bits).mul_(2.0**-10))

    def closures(self) -> dict[str, Callable[[], object]]:
        """What is timed, by name."""
        where = (self.values, self.segments, self.payload, self.at)
        return {
            "encode": lambda: self.codec.encode(*where),
            "encode_stochastic": lambda: self.noisy.encode(*where, seed=1),
            "decode": lambda: self.codec.decode(self.encoded, self.segments, self.out),
            "fbgemm_encode": lambda: fbgemm_encode(self.contiguous, self.bits),
            "fbgemm_backend_encode": self.backend_encode,
            "fbgemm_backend_decode": self.backend_decode,
            "fbgemm_decode": lambda: fbgemm_decode(self.fused, self.bits),
        }


def measure(case: Case, repeats: int) -> dict[str, float]:
    """Median GB/s by name; repeats are interleaved so that drift hits all alike."""
    closures = case.closures()
    seconds: dict[str, list[float]] = {name: [] for name in closures}
    for _ in range(repeats):
        for name, call in closures.items():
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    nbytes = case.contiguous.numel() * 4
    return {n: round(nbytes / statistics.median(s[2:]) / 1e9, 2) for n, s in seconds.items()}


def main() -> None:
    """Parse, check, time, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2048, help="rows of each table")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    segments = interleaved_segments(options.rows, options.tables, options.dim, gap=0)
    values = torch.randn(options.rows, options.tables * options.dim)
    for bits in (8, 4, 2):
        case = Case(values, segments, bits)
        case.check()
        shape = {"rows": options.rows, "dim": options.dim, "tables": options.tables}
        where = {"commit": commit, "cpu": platform.processor() or platform.machine()}
        print(json.dumps({"bits": bits, **measure(case, options.repeats), **shape, **where}))
    print("done: GB/s of float32 rows, higher is better")


if __name__ == "__main__":
    main()
