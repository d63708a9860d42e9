"""A kernel's PTX, run on CPU tensors, and what it did wrong.

A fault ends the launch with a PtxError: an access outside of the tensors (views count, not their
storages) or of shared memory, one that is not aligned to its width, lanes or warps that do not meet
at a barrier or shuffle, a loop without end, a trap. A finding is noted: a race, a read of shared
memory that nobody wrote, a float instruction that is inexact or that ptxas may fuse.

Not covered: ptxas and the hardware, weak memory order between CTAs, tensor cores, TMA, clusters.
"""

import ctypes
import hashlib
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from operator import mul
from pathlib import Path

from torch import Tensor

from tests.ptx.translate import Program, Unsupported, translate

HERE = Path(__file__).parent
CACHE = Path(tempfile.gettempdir(), f"trec_qcomm_ptx_{os.getuid()}")
FLAGS = ("-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv",
         "-Werror=implicit-function-declaration")  # fmt: skip
IS_HERE = platform.machine() == "x86_64" and shutil.which("gcc") is not None
KINDS = (  # in the order of machine.h
    "out of bounds", "misaligned", "lanes or warps that do not meet", "deadlock", "does not end",
    "trap", "", "uninitialised shared memory read", "race: read of another thread's write",
    "race: write over another thread's read", "race: two writes", "two writes of one value",
    "CTAs: read of another's write", "CTAs: write over another's read", "CTAs: two writes",
    "CTAs: two writes of one value", "integer division by zero", "shuffle from a lane not there",
    "approximate", "float instruction that ptxas may fuse",
    "race in a warp: read of another thread's write",
    "race in a warp: write over another thread's read", "race in a warp: two writes",
)  # fmt: skip
NUM_FAULTS = KINDS.index("")
GAP = ALIGNMENT = 4096  # bytes between tensors; addresses keep their low 12 bits
NUMBERS = {"fp32": "f", "fp64": "d"}
COUNTED = ("loaded", "stored", "updated", "conflicts")  # in the order of machine.h
SECTOR = 32  # bytes
_one_at_a_time = threading.Lock()
_counters: list[Counter[str]] = []  # the innermost `counting` is the last


class PtxError(Exception):
    """What a GPU would answer with a fault, or never."""


class _Note(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("kind", "insn", "other", "count")),
        *((name, ctypes.c_uint32) for name in ("cta", "tid", "by_cta", "by_tid")),
        ("what", ctypes.c_uint64),
    ]


@dataclass
class Finding:
    """Something that a launch did wrong.

    Args:
        kind: one of KINDS.
        kernel: name of module and function.
        where: the Python line and instruction.
        detail: which thread, and after which other instruction.
    """

    kind: str
    kernel: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.kernel}\n    at {self.where}\n    {self.detail}"


def _build(text: str, name: str, *sources: Path) -> ctypes.CDLL:
    """Compile C, once for each text, and load it. Args: text: in front of the sources."""
    headers = (HERE / name for name in ("machine.h", "instructions.h"))
    key = (text + str(FLAGS)).encode() + b"".join(
        path.read_bytes() for path in (*headers, *sources)
    )
    made = CACHE / f"{name}_{hashlib.sha256(key).hexdigest()[:20]}.so"
    if not made.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        part = made.with_suffix(f".{os.getpid()}")
        options = ["-O2" if sources else "-O1", *FLAGS, f"-I{HERE}", "-o", str(part)]
        command = ["gcc", *options, *map(str, sources), "-x", "c", "-", "-lm"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        if done.returncode:
            missing = re.findall(r"(?:declaration of function|error:) \W(\w+)\W", done.stderr)
            raise Unsupported(", ".join(dict.fromkeys(missing)) or done.stderr)
        part.rename(made)
    return ctypes.CDLL(str(made), mode=ctypes.RTLD_GLOBAL if sources else ctypes.RTLD_LOCAL)


@cache
def _machine() -> ctypes.CDLL:
    machine = _build(
        "", "machine", *(HERE / f"{name}.c" for name in ("memory", "threads", "counters"))
    )
    machine.machine_arena.restype = ctypes.c_uint64
    machine.machine_notes.restype = ctypes.POINTER(_Note)
    assert machine.machine_note_size() == ctypes.sizeof(_Note)
    return machine


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count what launches do whose CTAs run one after the other.

    Yields: sums: "launches"; "issued", instructions of warps without moves; "loaded", "stored" and
        "updated" (by atomics), bytes of sectors of global memory; "conflicts", wavefronts of shared
        memory beyond the least.
    """
    _counters.append(Counter())
    try:
        yield _counters[-1]
    finally:
        _counters.pop()


@dataclass
class Kernel:
    """A kernel that can be launched."""

    program: Program
    code: ctypes._CFuncPtr
    launches: int = 0

    @classmethod
    def from_ptx(cls, ptx: str) -> "Kernel":
        """Translate and compile PTX. Raises: Unsupported: an instruction that is not known."""
        _machine()
        program = translate(ptx)
        return cls(program, _build(program.code, program.name).run)

    def place(self, insn: int) -> str:
        path, line = self.program.lines[insn]
        return f"{path}:{line}: {self.program.instructions[insn]}"


def span(tensor: Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte and the one behind its last."""
    begin = tensor.data_ptr()
    if not tensor.numel():
        return begin, begin
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return begin, begin + (last + 1) * tensor.element_size()


class Arena:
    """Copies of the tensors of a launch, far from each other, so that nothing but them is there.

    Tensors of one storage keep their places to each other.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        spans: dict[int, tuple[int, int]] = {}
        for tensor in tensors:
            begin, end = span(tensor)
            first, last = spans.get(storage := tensor.untyped_storage().data_ptr(), (begin, end))
            spans[storage] = min(first, begin), max(last, end)
        self.blocks: dict[int, tuple[int, int, int]] = {}  # of a storage: place, address, bytes
        at = GAP
        for storage, (begin, end) in spans.items():
            at += begin % ALIGNMENT
            self.blocks[storage] = at, begin, end - begin
            at = -(-(at + end - begin + GAP) // ALIGNMENT) * ALIGNMENT
        self.base = _machine().machine_arena(ctypes.c_uint64(at + GAP))
        begins = {self.address(tensor): span(tensor) for tensor in tensors}
        ranges = ((at, at + end - begin) for at, (begin, end) in begins.items() if end > begin)
        self.ranges = sorted({*ranges})
        for at, begin, size in self.blocks.values():
            ctypes.memmove(self.base + at, begin, size)

    def address(self, tensor: Tensor) -> int:
        at, begin, _ = self.blocks[tensor.untyped_storage().data_ptr()]
        return self.base + at + tensor.data_ptr() - begin

    def copy_out(self) -> None:
        for at, begin, size in self.blocks.values():
            ctypes.memmove(begin, self.base + at, size)

    def describe(self, address: int) -> str:
        """Say in which tensor's memory an address lies, or near which."""
        if not self.ranges:
            return f"0x{address:x}"
        begin, end = min(self.ranges, key=lambda pair: max(pair[0] - address, address - pair[1]))
        return f"byte {address - begin} of a tensor of {end - begin}"


def bits_of(value: float, kind: str) -> int:
    """Return the bits of a number that a kernel takes. Args: kind: Triton's name of its type."""
    if kind in NUMBERS:
        return int.from_bytes(struct.pack("<" + NUMBERS[kind], value), "little")
    return int(value) % 2**64


def launch(
    kernel: Kernel,
    grid: tuple[int, int, int],
    arguments: list,
    kinds: list[str],
    *,
    shared: int,
    threads: int,
    name: str = "",
    seed: int = 0,
) -> list[Finding]:
    """Run all CTAs of a launch on CPU tensors, and return what was wrong.

    Args:
        arguments: tensors and numbers, in the order of the PTX's parameters.
        kinds: Triton's names of their types.
        shared: bytes of shared memory.
        threads: the number of a CTA's.
        seed: not 0: eight CTAs at once, and threads in a random order.
    Raises: PtxError: a fault; the tensors are then as they were.
    """
    with _one_at_a_time:
        arena = Arena([value for value in arguments if isinstance(value, Tensor)])
        words = [
            arena.address(value) if isinstance(value, Tensor) else bits_of(value, kind)
            for value, kind in zip(arguments, kinds, strict=True)
        ]
        words += [0] * (kernel.program.num_params - len(words))  # scratch memory that is not there
        pairs = [address for pair in arena.ranges for address in pair]
        blocks = kernel.program.blocks
        runs, of_memory = (ctypes.c_uint64 * len(blocks))(), (ctypes.c_uint64 * len(COUNTED))()
        is_counted = bool(_counters) and not seed
        _machine().machine_count(runs if is_counted else None, len(blocks), of_memory)
        count = _machine().machine_launch(
            kernel.code,
            (ctypes.c_uint64 * len(words))(*words),
            (ctypes.c_uint32 * 3)(*grid),
            *(threads, shared),
            *((ctypes.c_uint64 * len(pairs))(*pairs), len(arena.ranges)),
            ctypes.c_uint64(seed),
        )
        kernel.launches += 1
        notes = _machine().machine_notes()[:count]
        findings = [_finding(kernel, note, arena, name or kernel.program.name) for note in notes]
        for finding in findings:
            if finding.kind in KINDS[:NUM_FAULTS]:
                raise PtxError(str(finding))
        arena.copy_out()
        if is_counted:
            issued = sum(map(mul, runs, blocks))
            scale = [SECTOR, SECTOR, SECTOR, 1]
            _counters[-1].update(dict(zip(COUNTED, map(mul, of_memory, scale), strict=True)))
            _counters[-1].update(launches=1, issued=issued)
        return findings


def _finding(kernel: Kernel, note: _Note, arena: Arena, name: str) -> Finding:
    kind, where = KINDS[note.kind], kernel.place(note.insn)
    what = arena.describe(note.what) if ".global" in where else f"0x{note.what:x}"
    detail = f"{note.count} times, first in CTA {note.cta} thread {note.tid}: {what}"
    if "race" in kind or "CTAs" in kind or "writes" in kind:
        other = f"CTA {note.by_cta} thread {note.by_tid}"
        detail += f"\n    after {other} at {kernel.place(note.other)}"
    return Finding(kind, name, where, detail)
