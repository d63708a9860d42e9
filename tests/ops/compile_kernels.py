"""Compile recorded launches of Triton kernels for a GPU that need not be there.

  python tests/ops/compile_kernels.py launches.json     # not under TRITON_INTERPRET

A launch is {"module", "kernel", "types": {argument: Triton's name of its type}, "aligned": the
arguments that are multiples of 16, "constants": {argument: value}, "options": num_warps and
maxnreg}. It prints a JSON list with one `Compiled` for each launch.
"""

import importlib
import json
import re
import struct
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

TARGET = ("cuda", 90, 32)
# Instructions that round once where the reference rounds twice, approximate, or flush denormals.
INEXACT = re.compile(
    r"\b(?:fma\.\w+\.f32|fma\.\w+\.f64|mad\.\w*\.?f32|div\.(?:full|approx)\S*)|\S*\.ftz\S*"
)
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", re.M)
LOCAL, NOP = {"LDL": 0x983, "STL": 0x387}, 0x918  # opcodes


@dataclass
class Compiled:
    """What a launch compiles to.

    Args:
        problems: what keeps it from giving the bytes of the reference, or makes it slow.
        registers: the number of a thread's registers.
        stack: bytes of each thread, in device memory.
        shared: bytes of shared memory.
        instructions: the number in the program text, each counted once.
    """

    problems: list[str] = field(default_factory=list)
    registers: int = 0
    stack: int = 0
    shared: int = 0
    instructions: int = 0


def compiled(launch: dict[str, Any]) -> Compiled:
    """Compile a launch, and look at the instructions."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(importlib.import_module(launch["module"]), launch["kernel"])
    place = {name: (i,) for i, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        kernel,
        {name: launch["types"].get(name, "constexpr") for name in kernel.arg_names},
        constexprs={place[name]: value for name, value in launch["constants"].items()},
        attrs={place[name]: [["tt.divisibility", 16]] for name in launch["aligned"]},
    )
    options = {"enable_fp_fusion": False} | launch["options"]
    made = triton.compile(source, target=GPUTarget(*TARGET), options=options)
    result = usage(made.asm["cubin"])
    result.shared = made.metadata.shared
    result.problems += sorted(set(INEXACT.findall(made.asm["ptx"])))
    return result


def usage(cubin: bytes) -> Compiled:
    """Return what NVIDIA's own tools, which come with Triton, say of a program.

    Instructions are counted here, as the disassembler takes a third of a second for each program;
    it is asked where there are accesses of local memory.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        resources = printed("cuobjdump", "--dump-resource-usage", file.name)
        opcodes = opcodes_of(cubin)
        num_local = sum(opcode in LOCAL.values() for opcode in opcodes)
        if num_local:
            names = INSTRUCTION.findall(printed("nvdisasm", "-c", file.name))
            assert [*map(LOCAL.get, names)] == [n if n in LOCAL.values() else None for n in opcodes]
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", resources).groups()
    num_instructions = sum(opcode != NOP for opcode in opcodes)
    assert num_instructions, "no instructions"
    problems = [f"{stack} bytes of stack"] * (int(stack) > 0)
    problems += [f"{num_local} loads and stores of local memory"] * (num_local > 0)
    return Compiled(problems, int(registers), int(stack), 0, num_instructions)


def opcodes_of(cubin: bytes) -> list[int]:
    """Return the opcodes of a program's instructions: the low 12 bits of each 16 bytes.

    A cubin is an ELF file. The code of a function is a section whose name begins with .text.
    """
    (at,) = struct.unpack_from("<Q", cubin, 0x28)
    size, num_sections, names = struct.unpack_from("<3H", cubin, 0x3A)
    sections = [struct.unpack_from("<2I4Q", cubin, at + k * size) for k in range(num_sections)]
    name_of = [cubin[sections[names][4] + section[0] :][:6] for section in sections]
    return [
        struct.unpack_from("<H", cubin, place)[0] & 0xFFF
        for name, (*_, begin, length) in zip(name_of, sections, strict=True)
        if name == b".text."
        for place in range(begin, begin + length, 16)
    ]


def printed(tool: str, *arguments: str) -> str:
    """Return what a tool of NVIDIA's that comes with Triton prints."""
    import triton.backends.nvidia as nvidia

    command = [Path(nvidia.__file__).parent / "bin" / tool, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    results = []
    for launch in json.loads(Path(sys.argv[1]).read_text()):
        try:
            results.append(compiled(launch))
        except Exception as error:  # any compiler stage may fail; the test shows the message
            results.append(Compiled([f"{type(error).__name__}: {error}"]))
    print(json.dumps([asdict(result) for result in results]))


if __name__ == "__main__":
    main()
