"""All tools of trec_qcomm under one command.

trec-qcomm preview --help          the arguments of one tool, with examples
python -m trec_qcomm preview ...   the same tool, where the package is not installed
"""

import sys
from collections.abc import Sequence
from importlib import import_module

TOOLS = {
    "choose": ("trec_qcomm.lab.choose", "which preset's settings are fastest on this network"),
    "preview": ("trec_qcomm.lab.preview.command", "each codec on captured rows, the best of each"),
    "sizes": ("trec_qcomm.lab.sizes.command", "sizes of segments by table, for plans"),
    "search": ("trec_qcomm.lab.search.command", "a codec for every table, within a budget of loss"),
    "simulate": ("trec_qcomm.lab.simulate.command", "predicted steps on up to thousands of GPUs"),
    "report": ("trec_qcomm.lab.report.command", "records as one page of figures"),
    "debug": ("trec_qcomm.lab.debug.command", "a recorded run of the numeric debugger"),
    "schema": ("trec_qcomm.lab.schema", "JSON schema of a config, and its reference"),
    "warm-up": ("trec_qcomm.lab.warm_up", "compile a config's CPU kernels ahead of a training"),
}


def text_of_help() -> str:
    """Return what `trec-qcomm --help` prints."""
    width = max(map(len, TOOLS))
    lines = [f"  {name:<{width}}  {what}" for name, (_, what) in TOOLS.items()]
    return "\n".join(
        ["usage: trec-qcomm TOOL ...", "", (__doc__ or "").rstrip(), "", "tools:", *lines]
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run the tool that the first word names, with the other words; return the exit status.

    Args: words: the command line; None: the command line of this process.
    """
    words = sys.argv[1:] if words is None else list(words)
    if not words or words[0] in ("-h", "--help"):
        print(text_of_help())
        return 0 if words else 2
    name, *others = words
    if name not in TOOLS:
        print(f"trec-qcomm: {name!r} is not one of {', '.join(TOOLS)}", file=sys.stderr)
        return 2
    status: int = import_module(TOOLS[name][0]).main(others)
    return status
