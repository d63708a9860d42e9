"""Run Triton kernels as the PTX that an H100 gets, instruction by instruction, on the CPU.

  python -m tests.ptx                   every kernel, in all forms that the project's tests launch
  python -m tests.ptx --part            every kernel once, and planted faults (as `make test` does)
  python -m tests.ptx PATH ...          the tests of these files or folders
  python -m tests.ptx --ptx-seed 3      eight CTAs at once, whose threads run in a random order

A test fails that meets a wrong byte, an access outside of the tensors, a misaligned one, a race, or
an instruction that rounds otherwise than the reference. Further arguments go to pytest. The last
line says what ran. It needs gcc and x86-64, and keeps what it compiles in the folder of temporary
files.
"""

import sys
from pathlib import Path

import pytest

from tests.ptx.emulator import IS_HERE

PART = "tests/ptx/kernels_on_ptx.py"
# Left out: tests that spawn ranks, which run the interpreter, and those that run no kernel.
ALL = (PART, "tests/ops", "tests/codecs", "tests/wire", "tests/comm", "tests/ext")
_OPS = (f"ops/test_{name}.py" for name in ("compiles", "fake_gpu", "specializations"))
WITHOUT_KERNELS = (*_OPS, "ext/fbgemm")


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    if not IS_HERE:
        print("needs gcc and x86-64", file=sys.stderr)
        return 1
    options = ["-p", "tests.ptx.plugin", "-o", "timeout=0"]
    if "--part" in arguments:
        arguments = [PART, *(argument for argument in arguments if argument != "--part")]
    elif not any(Path(argument.partition("::")[0]).exists() for argument in arguments):
        ignored = (f"--ignore=tests/{name}" for name in WITHOUT_KERNELS)
        marks = "(triton and not dist) or not (triton or dist or slow)"
        arguments = [*ALL, *ignored, "-m", marks, *arguments]
    status = pytest.main([*options, *arguments])
    from tests.ptx import plugin

    print(
        plugin.summary(), "all as they should be" if status == 0 else "WRONG, see above", sep=": "
    )
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
