"""What is wrong with a line that is not Criteo's: which field, or how many there are.

Knows: the text format of one line. Does not know: files, chunks. tsv.py decides what is malformed,
many lines at a time; here a few of them are looked at again, to say why.
"""

from __future__ import annotations

import re

NUM_DENSE = 13
NUM_SPARSE = 26
NUM_FIELDS = 1 + NUM_DENSE + NUM_SPARSE

_HEADER = re.compile(rb"[^0-9,;\t]*[A-Za-z]{2}[^,;\t]*[,;\t]")
_SHOWN = 20  # characters of a field in a message
_LABEL = (re.compile(rb"-0{1,18}|(?=.{1,18}$)0*[01]"), "0 or 1")
_INTEGER = (re.compile(rb"(-?[0-9]{1,18})?"), "a decimal integer of at most 18 digits, or nothing")
_CATEGORY = (re.compile(rb"[0-9a-fA-F]{0,8}"), "at most 8 hex digits, or nothing")
_FIELDS = (
    ("label", *_LABEL),
    *((f"I{k}", *_INTEGER) for k in range(1, NUM_DENSE + 1)),
    *((f"C{k}", *_CATEGORY) for k in range(1, NUM_SPARSE + 1)),
)


def why_malformed(line: bytes, *, is_first: bool) -> tuple[str, str]:
    """Return what kind of problem a malformed line has, and a phrase that names field and text.

    Args:
        line: the line, without its newline.
        is_first: whether it is the first of its file, which may be a header.
    Returns: the kind is "header", "fields" or the name of the first wrong field.
    """
    fields = line.split(b"\t")
    if is_first and _HEADER.match(line):
        return "header", f"looks like a header ({_shown(line)}), and Criteo's TSV has none"
    if len(fields) != NUM_FIELDS:
        others = "".join(f", {line.count(sign)} {name}" for sign, name in _OTHERS if sign in line)
        kind = "field" if len(fields) == 1 else "fields"
        return "fields", f"{len(fields)} {kind} parted by tabs{others}, expected {NUM_FIELDS}"
    for (name, pattern, expected), text in zip(_FIELDS, fields, strict=True):
        if not pattern.fullmatch(text):
            return name, f"{name} is {_shown(text)}, expected {expected}"
    raise AssertionError(f"not malformed: {line!r}")


_OTHERS = ((b",", "commas"), (b";", "semicolons"), (b"\0", "zero bytes"))


def _shown(text: bytes) -> str:
    cut = text[:_SHOWN].decode("ascii", "backslashreplace")
    return f"{cut!r}" + ("..." if len(text) > _SHOWN else "")
