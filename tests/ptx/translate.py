"""PTX of one kernel, translated to C.

A register becomes a variable of its bits, and an instruction a call of the function in
instructions.h that has its name: `add.s32` calls add_s32. Here stands only what a function cannot
do: scopes, labels and jumps, guards, vectors, and spaces of memory.
"""

import re
from dataclasses import dataclass, field

SPECIAL = {
    "%tid.x": "thread->tid", "%tid.y": "0", "%tid.z": "0", "%laneid": "thread->lane",
    "%ntid.x": "grid.ntid", "%ntid.y": "1", "%ntid.z": "1", "true": "1", "false": "0",
    "global_smem": "SHARED_BASE",
}  # fmt: skip
for axis, letter in enumerate("xyz"):
    SPECIAL[f"%ctaid.{letter}"] = f"thread->cta->ctaid[{axis}]"
    SPECIAL[f"%nctaid.{letter}"] = f"grid.nctaid[{axis}]"
ORDERED = {"relaxed", "acquire", "release", "acq_rel", "volatile", "mmio"}
WITHOUT_RESULT = ("bar", "barrier", "fence", "membar", "trap")
TOKEN = re.compile(r"\s*(?:([{}])|([\w$.]+:)(?!:)|([^;]*);)")


class Unsupported(Exception):
    """PTX that is not translated."""


@dataclass
class Program:
    """A kernel in C: the function `run`.

    Args:
        name: the kernel's.
        code: C.
        num_params: the number of its parameters.
        instructions: the text of each.
        lines: file and line in Python of each.
        blocks: the number of instructions of each basic block; moves, which ptxas drops, are none.
    """

    name: str
    code: str = ""
    num_params: int = 0
    instructions: list[str] = field(default_factory=list)
    lines: list[tuple[str, int]] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)


def translate(ptx: str) -> Program:
    return _Translator(ptx).program


def width_of(kind: str) -> int:
    """Return the bits of a type: s32 has 32, f16x2 as well, pred takes 8."""
    size, count = re.fullmatch(r"[a-z]+(\d*)(?:x(\d))?", kind).groups()
    return int(size or 8) * int(count or 1)


def split_operands(text: str) -> list[str]:
    """Split at commas that are in no brackets."""
    parts = re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", text)
    return [part.strip() for part in parts]


def elements_of(operand: str) -> list[str]:
    return [element.strip() for element in operand.strip("{}").split(",")]


class _Translator:
    def __init__(self, ptx: str) -> None:
        ptx = re.sub(r"/\*.*?\*/", "", re.sub(r"//[^\n]*", "", ptx), flags=re.S)
        head = re.search(r"\.entry\s+(\w+)\s*\(([^)]*)\)[^{]*\{", ptx)
        if head is None or ".func" in ptx[: head.start()]:
            raise Unsupported("no .entry, or functions that are called")
        self.files = dict(re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', ptx))
        params = re.findall(r"(\w+)\s*(?:,|$)", head[2].strip())
        self.number_of_param = {name: k for k, name in enumerate(params)}
        self.program = Program(head[1], num_params=len(params))
        self.scopes: list[dict[str, str]] = [{}]  # types of registers, by name or prefix
        self.variables: dict[str, int] = {}  # widths
        self.labels: set[str] = set()
        self.out: list[str] = []
        self.line = ("", 0)
        self._begin_block()
        for statement in self._statements(ptx[head.end() :]):
            self._translate(statement)
        names = "".join(f"u{width} {name} = 0;\n" for name, width in self.variables.items())
        self.program.code = (
            '#include "instructions.h"\nvoid run(Thread *thread, const u64 *params) {\n'
            f"{names}" + "\n".join(self.out) + "\n}\n"
        )

    def _statements(self, body: str) -> list[str]:
        """Split the body: a label ends in ':', braces of scopes are alone."""
        body = re.sub(r"(\.loc\s[^\n]*)\n", r"\1;\n", body)
        statements, depth, at = [], 1, 0
        while depth:
            match = TOKEN.match(body, at)
            if match is None:
                raise Unsupported(f"text: {body[at : at + 60]!r}")
            at = match.end()
            depth += {"{": 1, "}": -1}.get(match[1], 0)
            statements.append(match[1] or match[2] or " ".join(match[3].split()))
        return statements[:-1]

    def _translate(self, statement: str) -> None:
        first, *words = statement.split() or [""]
        if first == "{":
            self.scopes.append({})
        elif first == "}":
            self.scopes.pop()
        elif first.endswith(":"):
            self.labels.add(first[:-1])
            self.out.append(f"{self._label(first[:-1])}:;")
            self._begin_block()
        elif first == ".loc":
            self.line = self.files.get(words[0], ""), int(words[1])
        elif first == ".reg":
            for name in "".join(words[1:]).split(","):
                self.scopes[-1][re.sub(r"<\d+>", "", name)] = words[0].removeprefix(".")
        elif first and first[0] != ".":
            self._instruction(statement)
        elif first not in ("", ".pragma"):
            raise Unsupported(statement)

    def _instruction(self, text: str) -> None:
        program, guard = self.program, ""
        number = f"thread->insn = {len(program.instructions)};"
        program.instructions.append(text)
        program.lines.append(self.line)
        if text[0] == "@":
            predicate, text = text.split(None, 1)
            guard = f"if ({self._operand(predicate[1:])}) "
        name, _, rest = text.partition(" ")
        base, *mods = name.split(".")
        special = getattr(self, f"_{base}", self._call)
        code = special([base, *mods], split_operands(rest))
        self.out.append(f"{guard}{{ {number} {code} }}")
        program.blocks[-1] += base not in ("mov", "cvta") and mods[:1] != ["param"]
        if base == "bra":
            self._begin_block()

    def _begin_block(self) -> None:
        self.out.append(f"begin_block(thread, {len(self.program.blocks)});")
        self.program.blocks.append(0)

    def _label(self, name: str) -> str:
        return "L_" + re.sub(r"\W", "_", name)

    def _variable(self, name: str) -> str:
        """Return the C variable of a register, which inner scopes may name anew."""
        for depth in reversed(range(len(self.scopes))):
            scope = self.scopes[depth]
            if kind := scope.get(name) or scope.get(name.rstrip("0123456789")):
                variable = f"R{id(scope) if depth else ''}_" + re.sub(r"\W", "_", name)
                self.variables[variable] = width_of(kind)
                return variable
        raise Unsupported(f"{name!r} in {self.program.instructions[-1]}")

    def _operand(self, text: str) -> str:
        if text in SPECIAL:
            return SPECIAL[text]
        if text[0] == "!":
            return f"!{self._operand(text[1:])}"
        if bits := re.fullmatch(r"0[fFdD]([0-9a-fA-F]+)", text):
            return f"0x{bits[1]}ull"
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", text):
            return f"{int(text.rstrip('U'), 0) % 2**64}ull"
        return self._variable(text)

    def _set(self, register: str, value: str) -> str:
        return f"(void)({value});" if register == "_" else f"{self._variable(register)} = {value};"

    def _call(self, names: list[str], operands: list[str]) -> str:
        """Call the function of an instruction. A second result, after '|', is a predicate."""
        results = operands[:0] if names[0] in WITHOUT_RESULT else operands[0].split("|")
        arguments = ", ".join(map(self._operand, operands[bool(results) :]))
        call = f"{'_'.join(names)}({arguments})"
        code = self._set(results[0], call) if results else f"{call};"
        return code + "".join(self._set(name, "thread->is_there") for name in results[1:])

    def _bra(self, names: list[str], operands: list[str]) -> str:
        label = self._label(operands[0])
        return f"backward(); goto {label};" if operands[0] in self.labels else f"goto {label};"

    def _ret(self, names: list[str], operands: list[str]) -> str:
        return "return;"

    _exit = _ret

    def _mov(self, names: list[str], operands: list[str]) -> str:
        """Move a register, or make one of several, or several of one."""
        to, source = (elements_of(operand) for operand in operands)
        if "{" not in operands[0] + operands[1]:
            return self._call(names, operands)
        width = width_of(names[1]) // max(len(to), len(source))
        parts = [f"(u64)(u{width}){self._operand(s)} << {k * width}" for k, s in enumerate(source)]
        whole = " | ".join(parts) if len(source) > 1 else self._operand(source[0])
        each = (
            self._set(register, f"whole >> {k * width}")
            for k, register in enumerate(to)
            if register != "_"
        )
        return f"u64 whole = {whole}; " + " ".join(each)

    def _setp(self, names: list[str], operands: list[str]) -> str:
        """Compare; a second result is the opposite. Both may be combined with a predicate."""
        base, compare, *logic, kind = names
        signs = {"and": "&", "or": "|", "xor": "^"}
        if set(logic) - set(signs):
            raise Unsupported(self.program.instructions[-1])
        more = f" {signs[logic[0]]} ({self._operand(operands[3])})" if logic else ""
        values = ", ".join(map(self._operand, operands[1:3]))
        code = f"u8 is_so = {base}_{compare}_{kind}({values}); "
        for register, sign in zip(operands[0].split("|"), ("", "!"), strict=False):
            code += self._set(register, f"{sign}is_so{more}")
        return code

    def _address(self, operand: str) -> str:
        match = re.fullmatch(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\w+))?\s*\]", operand)
        if match is None:
            raise Unsupported(self.program.instructions[-1])
        return f"(u64){self._operand(match[1])} + {int(match[2] or '0', 0) % 2**64}ull"

    def _place(self, names: list[str], operand: str, count: int = 1) -> str:
        """Return the first arguments of an access: space, address and bytes."""
        space = {"global": "GLOBAL", "shared": "SHARED", "shared::cta": "SHARED"}
        known = [space[name] for name in names if name in space]
        if not known:
            raise Unsupported(self.program.instructions[-1])
        return f"{known[0]}, {self._address(operand)}, {count * width_of(names[-1]) // 8}"

    def _ld(self, names: list[str], operands: list[str]) -> str:
        to, kind = elements_of(operands[0]), names[-1]
        if names[1] == "param":
            return self._set(to[0], f"params[{self.number_of_param[operands[1].strip('[]')]}]")
        order = "ATOMIC" if ORDERED & set(names) else "PLAIN"
        place = self._place(names, operands[1], len(to))
        code = f"{'i' if kind[0] == 's' else 'u'}{width_of(kind)} values[{len(to)}]; "
        code += f"load({place}, values, {order}); "
        return code + " ".join(self._set(name, f"values[{k}]") for k, name in enumerate(to))

    def _st(self, names: list[str], operands: list[str]) -> str:
        order = "ATOMIC" if ORDERED & set(names) else "PLAIN"
        values = [self._operand(element) for element in elements_of(operands[1])]
        place = self._place(names, operands[0], len(values))
        array = f"u{width_of(names[-1])} values[] = {{{', '.join(values)}}};"
        return f"{array} store({place}, values, {order});"

    def _red(self, names: list[str], operands: list[str]) -> str:
        update = f"atom_{names[-2]}_{names[-1]}"
        values = ", ".join(map(self._operand, [*operands[1:], "0"][:2]))
        return f"atomic({self._place(names, operands[0])}, {update}, {values});"

    def _atom(self, names: list[str], operands: list[str]) -> str:
        return self._set(operands[0], self._red(names, operands[1:]).rstrip(";"))

    def _matrices(self, state: str, names: list[str], address: str) -> str:
        """Return code that waits until all lanes move their rows of 1, 2 or 4 matrices."""
        how = int(names[4][1:]) + 16 * ("trans" in names)
        value = f"thread->value = {self._address(address)};"
        return f"thread->how = {how}; {value} wait_for({state}, ~0u); "

    def _ldmatrix(self, names: list[str], operands: list[str]) -> str:
        each = enumerate(elements_of(operands[0]))
        return self._matrices("LDMATRIX", names, operands[1]) + " ".join(
            self._set(register, f"thread->matrices[{k}]") for k, register in each
        )

    def _stmatrix(self, names: list[str], operands: list[str]) -> str:
        each = enumerate(map(self._operand, elements_of(operands[1])))
        held = " ".join(f"thread->matrices[{k}] = {value};" for k, value in each)
        return f"{held} {self._matrices('STMATRIX', names, operands[0])}"
