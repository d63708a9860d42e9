"""pytest plugin: Triton kernels that are launched on CPU tensors run as the PTX that an H100 gets.

  pytest -p tests.ptx.plugin ...    loads it before triton is imported

A launch takes the path that it takes on a GPU: Triton specializes the kernel for its arguments and
compiles it for compute capability 9.0, and the emulator runs the PTX. Tests and code of the project
believe that Triton's interpreter runs. A fault or a finding fails the test that meets it.
torch.empty gives bytes of 0xCB, as a GPU's allocator gives old ones and a CPU's often zeros.
"""

import ctypes
import itertools
import os
from collections import Counter
from functools import wraps

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource, make_backend
from triton.runtime import interpreter, jit

from tests.ptx.emulator import CACHE, Kernel, PtxError, launch
from trec_qcomm.core import transfer

TARGET = GPUTarget("cuda", 90, 32)
BACKEND = make_backend(TARGET)
BENIGN = ("two writes of one value",)  # lanes that hold one value all store it
# Kernels whose races are harmless: a plain read before an atomic of the same place only saves the
# atomic; streams of one warp, which never part, read what one of them writes later.
KNOWN = {"_insert", "pop_streams"}
forms: dict[tuple[str, str], tuple[Kernel, list[str], list[str], int, int]] = {}
known: Counter[str] = Counter()  # findings, by kernel
numbers = itertools.count(1)
schedule = {"seed": 0}

knobs.runtime.interpret = False  # kernels are made to be compiled,
os.environ["TRITON_INTERPRET"] = "1"  # and the project believes that they are interpreted
os.environ.setdefault("TRITON_CACHE_DIR", str(CACHE / "triton"))
# What ptxas makes is not run.
CUDABackend.make_cubin = lambda self, src, metadata, opt, capability: b"none"


def name_of(kernel: jit.JITFunction) -> str:
    return f"{kernel.fn.__module__}.{kernel.fn.__name__}"


def compile_for(kernel: jit.JITFunction, arguments: tuple, keywords: dict):
    """Return a kernel's form for these arguments, and the arguments by name."""
    if not hasattr(kernel, "ptx_binder"):
        parts = kernel.signature, kernel.params, BACKEND
        kernel.ptx_binder = jit.create_function_from_signature(*parts)
    keywords = keywords | {"debug": False}
    bound, specialization, options = kernel.ptx_binder(*arguments, **keywords)
    key = name_of(kernel), f"{kernel.cache_key} {specialization} {options}"
    if key not in forms:
        parsed, signature, constants, attributes = kernel._pack_args(
            BACKEND, keywords, bound, specialization, options
        )
        source = ASTSource(kernel, signature, constants, attributes)
        made = triton.compile(source, target=TARGET, options=parsed.__dict__)
        assert not made.metadata.global_scratch_size, "scratch memory is not emulated"
        names = [name for name, kind in signature.items() if kind != "constexpr"]
        kinds = [signature[name] for name in names]
        sizes = made.metadata.shared, 32 * made.metadata.num_warps
        forms[key] = Kernel.from_ptx(made.asm["ptx"]), names, kinds, *sizes
    return forms[key], bound


class Executor(interpreter.GridExecutor):
    """What kernel[grid] is: an interpreter's executor, so that tests which watch these see it."""

    def __init__(self, kernel: jit.JITFunction, grid) -> None:
        self.kernel, self.fn, self.grid = kernel, kernel.fn, grid
        self.arg_names = kernel.arg_names
        self.constexprs = [param.name for param in kernel.params if param.is_constexpr]


def run(executor: Executor, *arguments, **keywords) -> None:
    """Run a launch. Raises: PtxError: a fault, or a finding but races of KNOWN."""
    keywords.pop("warmup", None)
    form, bound = compile_for(executor.kernel, arguments, keywords)
    kernel, names, kinds, shared, threads = form
    grid = executor.grid(bound) if callable(executor.grid) else executor.grid
    grid, name = (*map(int, grid), 1, 1)[:3], name_of(executor.kernel)
    seed = schedule["seed"] and (schedule["seed"] << 32) + next(numbers)
    findings = launch(
        *(kernel, grid, [bound[name] for name in names], kinds),
        **{"shared": shared, "threads": threads, "name": name, "seed": seed},
    )
    findings = [finding for finding in findings if finding.kind not in BENIGN]
    races = [finding for finding in findings if finding.kind.startswith(("race", "CTAs"))]
    if races == findings and (short := name.rpartition(".")[2]) in KNOWN:
        known[short] += len(findings)
    elif findings:
        raise PtxError("\n".join(map(str, findings)))


interpreter.GridExecutor.__call__ = run
jit.JITFunction.__getitem__ = lambda kernel, grid: Executor(kernel, grid)
jit.JITFunction.kwargs = property(lambda self: {"do_not_specialize": self.do_not_specialize})


def uploaded(device: torch.device, *vectors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return copies that begin at multiples of 16 bytes, as on a GPU."""
    return tuple(vector.clone() for vector in vectors)


transfer.upload = uploaded


def poisoned(make):
    """Return a function that makes a tensor of bytes that nobody should read."""

    @wraps(make)
    def made(*arguments, **keywords):
        tensor = make(*arguments, **keywords)
        if tensor.device.type == "cpu" and tensor.dtype != torch.bool and tensor.is_contiguous():
            ctypes.memset(tensor.data_ptr(), 0xCB, tensor.nbytes)
        return tensor

    return made


torch.empty, torch.empty_like = poisoned(torch.empty), poisoned(torch.empty_like)
torch.Tensor.new_empty = poisoned(torch.Tensor.new_empty)


def summary() -> str:
    """Say what ran, in one line."""
    kernels = {name for name, _ in forms}
    launches = sum(form[0].launches for form in forms.values())
    harmless = ", ".join(f"{name} {count}" for name, count in known.items())
    return (
        f"PTX: {len(kernels)} kernels in {len(forms)} forms, {launches} launches"
        f"{harmless and f'; races that are known to be harmless: {harmless}'}"
    )


def pytest_addoption(parser) -> None:
    parser.addoption("--ptx-seed", type=int, default=0, help="eight CTAs at once, in random order")


def pytest_configure(config) -> None:
    schedule["seed"] = config.getoption("--ptx-seed")


def pytest_terminal_summary(terminalreporter) -> None:
    terminalreporter.write_line(summary())
