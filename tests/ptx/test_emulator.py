"""The emulator gives known answers (instructions.txt) and finds planted faults (faults.txt).

There are registers %p1, %rs1, %r1 and %rd1 to 98. %rd90, %rd91 and so on hold the addresses of the
tensors, %r90 the number of the thread, and %p90 is true in thread 9.
"""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.ptx.emulator import IS_HERE, KINDS, Kernel, PtxError, counting, launch
from tests.ptx.translate import Unsupported

pytestmark = pytest.mark.skipif(not IS_HERE, reason="needs gcc and x86-64")
HERE = Path(__file__).parent
ANSWERS, FAULTS = (
    (HERE / f"{name}.txt").read_text().splitlines()[1:] for name in ("instructions", "faults")
)
PREFIX = {"16": "%rs", "32": "%r", "64": "%rd"}
TEXT = (HERE / "kernel.ptx").read_text()


def run_ptx(body: str, *tensors: Tensor, ctas: int = 1, threads: int = 32, seed: int = 0):
    """Run the body of a kernel, and return what is found."""
    names = [f"k_param_{k}" for k in range(len(tensors))]
    params = ", ".join(f".param .u64 .ptr .global .align 1 {name}" for name in names)
    loads = "\n".join(f"ld.param.b64 %rd{90 + k}, [{name}];" for k, name in enumerate(names))
    text = TEXT.replace("PARAMS", params).replace("LOADS", loads).replace("BODY", body)
    kernel = Kernel.from_ptx(text)
    sizes = {"shared": 1024, "threads": threads, "seed": seed}
    return launch(kernel, (ctas, 1, 1), [*tensors], ["*u8"] * len(tensors), **sizes)


def known_answers() -> tuple[str, list[list[int]], list[int]]:
    """Return code that runs each line, its operands, and its result in thread 9."""
    body, given, answers = "", [], []
    for line in ANSWERS:
        answer, operands, text = line.split("|", 2)
        values = [int(word, 16) for word in operands.split()]
        places = [f"%rd91+{24 * len(answers) + 8 * k}" for k in range(len(values))]
        for k, (letter, place) in enumerate(zip("ABC", places, strict=False)):
            width = re.search(rf"\b{letter}(16|32|64)\b", text)[1]
            text = text.replace(letter + width, f"{PREFIX[width]}{k + 1}")
            body += f"ld.global.b{width} {PREFIX[width]}{k + 1}, [{place}];\n"
        width = re.search(r"\bD(16|32|64)\b", text)[1]
        text = text.replace(f"D{width}", f"{PREFIX[width]}9")
        place = f"%rd90+{8 * len(answers)}"
        body += f"{text};\n@%p90 st.global.b{width} [{place}], {PREFIX[width]}9;\n"
        given.append(values + [0] * (3 - len(values)))
        answers.append(int(answer, 16))
    return body, given, answers


def test_known_answers():
    body, given, answers = known_answers()
    out, scratch = (torch.zeros(len(answers), dtype=torch.uint64) for _ in range(2))
    assert run_ptx(body, out, torch.tensor(given, dtype=torch.uint64), scratch) == []
    results = dict(zip(ANSWERS, map(hex, out.tolist()), strict=True))
    assert results == dict(zip(ANSWERS, map(hex, answers), strict=True))


def test_matrices():
    """Lane 4 i + j holds columns 2 j and 2 j + 1 of row i, as in the PTX manual's picture."""
    lanes = torch.arange(32, dtype=torch.int32)
    rows = "shl.b32 %r2, %r90, 4; and.b32 %r2, %r2, 127; add.s32 %r3, %r2, global_smem;"
    place = f"{rows} shl.b32 %r4, %r90, 2; add.s32 %r4, %r4, global_smem;"
    stored, matrix = "st.shared.b32 [%r4], %r90; bar.sync 0;", "sync.aligned.m8n8.x1"
    halves = lanes.view(torch.int16).view(8, 8)
    for code, expected in (
        (f"stmatrix.{matrix}.shared.b16 [%r3], {{%r90}}; bar.sync 0; ld.shared.b32 %r1, [%r4];",
         halves),
        (f"{stored} ldmatrix.{matrix}.shared.b16 {{%r1}}, [%r3];", halves),
        (f"{stored} ldmatrix.{matrix}.trans.shared.b16 {{%r1}}, [%r3];", halves.T),
    ):  # fmt: skip
        out = torch.zeros(8, 8, dtype=torch.int16)
        to_out = "mul.wide.u32 %rd1, %r90, 4; add.s64 %rd2, %rd90, %rd1; st.global.b32 [%rd2], %r1;"
        assert not run_ptx(f"{place} {code} {to_out}", out)
        assert torch.equal(out, expected)


@pytest.mark.parametrize("text", ["tanh.approx.f32", "add.rz.f32", "cvt.sat.s8.s32"])
def test_what_is_not_known_is_named(text):
    with pytest.raises(Unsupported, match=text.replace(".", "_")):
        run_ptx(f"{text} %r1, %r2{', %r3' * (text[0] == 'a')};")


@pytest.mark.parametrize("seed", [0, 7])
def test_planted_faults(seed):
    wrong = {}
    for line in FAULTS:
        expected, sizes, body = line.split(" | ", 2)
        ctas, threads = map(int, sizes.split())
        numbers = torch.arange(256, dtype=torch.int32)
        try:
            findings = run_ptx(body, numbers, ctas=ctas, threads=threads, seed=seed)
            is_wrong = {finding.kind for finding in findings} or {"nothing"}
        except PtxError as error:
            is_wrong = {kind for kind in KINDS if kind and str(error).startswith(kind)}
            assert torch.equal(numbers, torch.arange(256, dtype=torch.int32))  # as they were
        if not is_wrong <= set(expected.split(", ")):
            wrong[line] = is_wrong
    assert wrong == {}


def test_views_are_the_bounds():
    words = torch.arange(256, dtype=torch.int32)
    with pytest.raises(PtxError, match="byte 64 of a tensor of 64"):
        run_ptx("st.global.b32 [%rd90 + 64], %r90;", words[:16])
    with pytest.raises(PtxError, match="byte 56 of a tensor of 60"):  # half of it
        run_ptx("st.global.b64 [%rd90 + 56], %rd90;", words[:15])


COUNTED = {
    "all lanes beside each other": ("shl.b32 %r1, %r90, 2;", {"loaded": 4 * 32}),
    "one sector a lane": ("shl.b32 %r1, %r90, 5;", {"loaded": 32 * 32}),
    "one sector": ("and.b32 %r1, %r90, 4;", {"loaded": 32}),
    "a lane alone": ("@!%p90 bra $A; mov.b32 %r1, 0;", {"loaded": 32}),
}


@pytest.mark.parametrize("name", COUNTED)
def test_sectors_are_counted(name):
    """A warp reads words of a tensor; the last of two CTAs does the same."""
    code, expected = COUNTED[name]
    body = f"""{code} cvt.u64.u32 %rd1, %r1; add.s64 %rd1, %rd1, %rd90;
        ld.global.b32 %r2, [%rd1]; $A: bar.sync 0;"""
    with counting() as counts:
        run_ptx(body, torch.zeros(1024, dtype=torch.uint8), ctas=2)
    assert counts["loaded"] == 2 * expected["loaded"]
    assert counts["stored"] == counts["updated"] == counts["conflicts"] == 0


def test_instructions_and_conflicts_are_counted():
    """Words of shared memory 8 bytes apart need two wavefronts; a loop runs 3 times."""
    body = """shl.b32 %r1, %r90, 3; mov.b32 %r2, global_smem; add.s32 %r1, %r1, %r2;
        mov.b32 %r3, 0; $B: st.shared.b32 [%r1], %r3; add.s32 %r3, %r3, 1;
        setp.lt.u32 %p1, %r3, 3; @%p1 bra $B; atom.global.add.u32 %r4, [%rd90], 1;"""
    with counting() as counts:
        run_ptx(body, torch.zeros(4, dtype=torch.uint8), threads=64)
    warps = 2
    assert counts["issued"] == warps * (
        1 + 2 + 3 * 4 + 2
    )  # setp of %p90; before, loop, atom and ret
    assert counts["conflicts"] == warps * 3
    assert (counts["updated"], counts["launches"]) == (warps * 32, 1)
    with counting() as random_order:
        run_ptx(body, torch.zeros(4, dtype=torch.uint8), threads=64, seed=1)
    assert not random_order
