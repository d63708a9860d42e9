"""Parts that the command lines of tools share: parsers, files to write, exit after a mistake."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def parser_of(tool: str, description: str | None, **options: Any) -> argparse.ArgumentParser:
    """Return a parser of `python -m trec_qcomm TOOL` without arguments.

    Args:
        description: text of --help, the docstring of the tool's module.
        options: further arguments of ArgumentParser.
    """
    return argparse.ArgumentParser(
        prog=f"python -m trec_qcomm {tool}",
        description=(description or "").replace("%", "%%"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )


def run_tool(
    parser: argparse.ArgumentParser,
    words: Sequence[str] | None,
    run: Callable[[argparse.Namespace], str],
) -> int:
    """Run a tool, print the text that it returns, and return the exit status.

    A mistake in the words, or in a file that they name, ends with status 2.

    Args: words: the command line; None: that of this process.  run: function of the parsed words.
    """
    arguments = parser.parse_args(words)
    try:
        print(run(arguments))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return 0


def check_out(out: Path | None, *, force: bool = True) -> None:
    """Raise ValueError unless --out can be written. Args: force: whether it may exist."""
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise ValueError(f"out {out}: expected a file in a folder that exists")
    if out is not None and out.exists() and not force:
        raise ValueError(f"out {out}: exists; --force overwrites it")
