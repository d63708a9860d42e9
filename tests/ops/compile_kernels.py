"""Compile recorded launches of Triton kernels for a GPU that need not be there.

  python tests/ops/compile_kernels.py launches.json     # not under TRITON_INTERPRET

A launch is {"module", "kernel", "types": {argument: Triton's name of its type}, "aligned": the
arguments that are multiples of 16, "constants": {argument: value}}. It prints a JSON list with one
entry for each launch: what keeps it from giving the bytes of the reference, or [].
"""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

TARGET = ("cuda", 90, 32)
# Instructions that round once where the reference rounds twice, approximate, or flush denormals.
INEXACT = re.compile(
    r"\b(?:fma\.\w+\.f32|fma\.\w+\.f64|mad\.\w*\.?f32|div\.(?:full|approx)\S*)|\S*\.ftz\S*"
)


def compile_launch(launch: dict[str, Any]) -> list[str]:
    """Compile a launch; return the instructions in it that must not be there."""
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
    options = {"enable_fp_fusion": False}
    compiled = triton.compile(source, target=GPUTarget(*TARGET), options=options)
    assert len(compiled.asm["cubin"]) > 0
    return sorted(set(INEXACT.findall(compiled.asm["ptx"])))


def main() -> None:
    problems = []
    for launch in json.loads(Path(sys.argv[1]).read_text()):
        try:
            problems.append(compile_launch(launch))
        except Exception as error:  # any compiler stage may fail; the test shows the message
            problems.append([f"{type(error).__name__}: {error}"])
    print(json.dumps(problems))


if __name__ == "__main__":
    main()
