"""Make Markdown of the sections of our docstrings, so that the API pages show them as lists.

    Args:    rows: [R, D] float32, contiguous.  bits: 1..8.
    Raises:  ValueError: not 2-D.

becomes a bold word and an item for each name. The rest of a docstring is Markdown as it is.
"""

import re
from typing import Any

import griffe

_SECTION = re.compile(
    r"(Args|Attributes|Derived|Returns|Raises|Yields|Numerics|Source|Error|Knows|Does not know"
    r"|Shapes):(?:\s+|$)(.*)"
)
_LISTED = {"Args", "Attributes", "Derived", "Raises"}
_NAME = r"[A-Za-z_]\w*(?:, [A-Za-z_]\w*)*"
_ITEM = re.compile(rf"(?:^|(?<=\s\s))\s*({_NAME}): ")


class MarkdownSections(griffe.Extension):
    """Rewrites every docstring as it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replace the text of one object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(docstring: str) -> str:
    """Return the docstring with its sections as paragraphs and lists."""
    lines: list[str] = []
    section = ""
    for line in docstring.splitlines():
        match = _SECTION.match(line)
        if match:
            section = match.group(1)
            lines += ["", f"**{section}:**", ""]
            line = match.group(2)
        elif not line.strip() or (section and not line.startswith(" ")):
            section = ""
        if not section:
            lines.append(line)
        elif section in _LISTED:
            lines += _items(line)
        elif line.strip():
            lines.append(line.strip())
    return "\n".join(lines)


def _items(line: str) -> list[str]:
    """Return one line of a section, cut before each name; a line without names goes on."""
    starts = [match.start() for match in _ITEM.finditer(line)]
    if not starts:
        return [f"    {line.strip()}"] if line.strip() else []
    parts = [line[: starts[0]].strip()] if line[: starts[0]].strip() else []
    lines = [f"    {parts[0]}"] if parts else []
    for begin, end in zip(starts, [*starts[1:], len(line)], strict=True):
        name, note = line[begin:end].strip().split(": ", 1)
        lines.append(f"- `{name}`: {note}")
    return lines
