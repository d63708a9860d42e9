"""Sections of pages, made from records: the page of results, tables of the README and of others.

  python -m examples.bench.pages --check        exit status 1 if a page says something else
  python -m examples.bench.pages --write        put the sections there

A section lies between two comments of its page. The first names its file, or files, of records. On
the page of results it begins with a heading and the commands that wrote the records.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from examples.bench import tables
from examples.bench.gate import gate
from trec_qcomm.lab import records

ROOT = Path(__file__).resolve().parents[2]
BENCH, CRITEO = "examples/bench/results", "examples/criteo/results"
END = "<!-- end -->\n"
LINE = 105  # characters of a command


@dataclass(frozen=True)
class Section:
    """A part of a page, made from records.

    Args:
        page: file of the page.
        records: path of the file of records, with * for several.
        make: records -> markdown.
        title: heading; "" where the page itself has one.
        commands: what wrote the records.
    """

    page: Path
    records: str
    make: Callable[[Sequence[Any]], str]
    title: str = ""
    commands: Sequence[str] = ()

    def made(self) -> str:
        """Return the section as the records say."""
        head = f"## {self.title}\n\n" if self.title else ""
        for command in self.commands:
            kept = re.sub(" (?!--)", "\0", command)  # an option stays with its values
            lines = textwrap.wrap(kept, LINE, break_long_words=False, break_on_hyphens=False)
            head += "    " + " \\\n        ".join(lines).replace("\0", " ") + "\n"
        paths = sorted(ROOT.glob(self.records))
        if not paths:
            raise ValueError(f"{self.records}: no such file of records")
        table = self.make([record for path in paths for record in records.read(path)])
        return f"{head}\n{table}" if self.commands else head + table

    def put_into(self, text: str) -> str:
        """Return the page's text with this section made anew. Raises ValueError: no comments."""
        mark = f"<!-- from {self.records} -->\n"
        before, begin, rest = text.partition(mark)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise ValueError(f"{self.page}: expected {mark.strip()} ... {END.strip()}")
        return before + mark + self.made() + END + after


RESULTS_PAGE = ROOT / "examples" / "results.md"
_CRITEO = "--data criteo_kaggle_137k.tsv.xz"
_TWO = f"--hosts 2 {_CRITEO} --steps 10 --rate 10mbit,25mbit,100mbit,1gbit,none"
_FOUR = f"--hosts 4 {_CRITEO} --steps 10 --rate 25mbit,100mbit,none"
_MORE = f"{_CRITEO} --steps 25 --rate 25mbit,100mbit,1gbit,10gbit,none"
_AUTO = "--hosts 2 --embedding-dim 16 --rate 25mbit,100mbit,1gbit,none"
_DCN = "--model dcn --scale 0.5 --multi-hot --rows 20000 --batch-size 512 --steps 8"
_DCN += " --rate 25mbit,100mbit,1gbit"
_THEN = "git worktree add ../then a63d3dd; cd ../then;"
_SMALL = f"--hosts 4 {_CRITEO} --steps 40 --dense-arch 64 --over-arch 64"


def _net(options: str, stock: str, presets: str) -> str:
    """Return a call of examples.bench.net. Args: stock, presets: what comes after --configs."""
    files = f"configs/{{{presets}}}.yaml" if "," in presets else f"configs/{presets}.yaml"
    return f"python -m examples.bench.net {options} --configs {f'{stock} {files}'.strip()}"


def _timed_plans(plans: str, files: str = "") -> list[str]:
    """Return a call for each rate. Args: files: more plans, of the folder net/plans."""
    return [
        _net(f"{_SMALL} --rate {rate} --plans {plans} "
             f"examples/bench/net/plans/{{{files}planned_{rate},table_wise_again}}.yaml",
             "", "fast,best")
        for rate in ("100mbit", "1gbit")
    ]  # fmt: skip


def _result(name: str, make: Callable[[Sequence[Any]], str], title: str, *commands: str) -> Section:
    return Section(RESULTS_PAGE, f"{BENCH}/{name}.jsonl", make, title, commands)


SECTIONS = (
    Section(ROOT / "README.md", f"{BENCH}/links.jsonl", tables.networks_in_short),
    _result("links", tables.networks_and_kinds, "DLRM on 2 hosts",
        _net(f"{_TWO} --plan table_wise", "stock stock_fp16 stock_int8 stock_powersgd",
             "int8,unique_int4,fast,best"),
        _net(f"{_TWO} --plan row_wise", "stock stock_fp16 stock_powersgd", "int8,fast,best"),
    ),
    _result("links_planned", tables.networks, "DLRM on 2 hosts, planned",
        _net(f"--hosts 2 {_CRITEO} --steps 10 --rate 25mbit,100mbit,1gbit --plan planned",
             "stock stock_fp16 stock_int8", "fast,best"),
    ),
    _result("links_4_hosts", tables.networks, "DLRM on 4 hosts",
        _net(f"{_FOUR} --plan table_wise", "stock stock_fp16 stock_int8 stock_powersgd",
             "int8,unique_int4,fast,best"),
        _net(f"{_FOUR} --plans row_wise two_level", "stock stock_fp16 stock_powersgd",
             "int8,fast,best"),
    ),
    _result("net", tables.networks_not_in_links, "Two more presets",
        _net(f"--hosts 2,4 {_MORE}", "stock", "int4,papers/dct"),
        _net(f"--hosts 2 {_MORE} --plan row_wise", "stock", "int4"),
    ),
    _result("auto", tables.choices, "What auto chooses",
        *(_net(f"{_AUTO} --plans table_wise row_wise --batch-size {size} --steps {steps}", "stock",
               "int8,fast,best,auto") for size, steps in ((64, 30), (256, 30), (2048, 15))),
    ),
    _result("auto_dcn", tables.choices, "What auto chooses for DLRM-DCNv2",
        *(_net("--hosts 2 --rate none,1gbit --steps 15 --model dcn --scale 0.5 --multi-hot "
               f"--rows 20000 --plans table_wise row_wise --batch-size {batch_size}", "stock",
               "int8,fast,best,auto") for batch_size in (64, 256)),
    ),
    _result("dcn", tables.networks, "DLRM-DCNv2",
        _net(f"--hosts 2 {_DCN} --plan table_wise --pipelines none sparse_dist",
             "stock stock_fp16 stock_int8", "int8,int4,fast,best"),
        _net(f"--hosts 2 {_DCN} --plan row_wise --pipeline sparse_dist",
             "stock stock_fp16", "int8,fast,best"),
        _net(f"--hosts 2 {_DCN} --plan planned --pipeline sparse_dist",
             "stock stock_fp16 stock_int8", "fast,best"),
        _net(f"--hosts 4 {_DCN} --plan two_level --pipeline sparse_dist",
             "stock stock_fp16", "int8,fast,best"),
    ),
    _result("plans_4_hosts", tables.plans, "Plans, timed",
        *_timed_plans("table_wise row_wise column_wise two_level"),
    ),
    _result("placements_4_hosts", tables.plans, "Whole tables, placed by rules",
        *_timed_plans("table_wise", "greedy,"),
    ),
    _result("timeline", tables.timeline, "Parts of a step",
        _net(f"--hosts 2 {_CRITEO} --steps 5 --rate 250mbit --out runs/parts.jsonl --timeline "
             "examples/bench/results/timeline.jsonl", "stock", "best"),
    ),
    Section(RESULTS_PAGE, f"{CRITEO}/*.jsonl", gate, "Quality gate", (
        f"make accuracy ARGS='{_CRITEO}'",
        "python examples/criteo/studies/accuracy.py --configs configs/best.yaml --seeds 20 "
        f"--modes training --embedding-dim 64 {_CRITEO}",
        "python examples/criteo/studies/accuracy.py --configs configs/{int8,int4,fast,best}.yaml "
        "--seeds 20 --modes training --model dcn --scale 0.125 --multi-hot --rows 30000",
        "git worktree add ../then a63d3dd; cd ../then; "
        f"python examples/criteo/replicas.py {_CRITEO}",
    )),
    _result("length", tables.lengths, "Quality at length",
        "python examples/criteo/studies/length.py --configs best fast int8 int4 float8 --jobs 2",
    ),
    _result("longer", tables.lengths, "Quality over 20,000 steps",
        "python examples/criteo/studies/length.py --configs best --steps 20000 --seeds 4 --jobs 2",
    ),
    _result("long", tables.faults, "Two hours under faults", "make chaos"),
    _result("sequences", tables.networks, "Sequences on 2 hosts",
        f"{_THEN} python -m examples.bench.net --workload sequences --hosts 2 --steps 10 "
        "--rate 25mbit,100mbit,1gbit",
    ),
    _result("sequences_length", tables.lengths, "Sequences over 10,000 steps",
        "python -m examples.sequences.accuracy --configs int8 fast --seeds 6 --users 160000 "
        "--epochs 4 --jobs 2",
    ),
    _result("simulate", tables.predictions, "Predicted steps",
        "python -m trec_qcomm simulate --out examples/bench/results/simulate.jsonl --force "
        "--records examples/bench/results/links.jsonl examples/bench/results/links_4_hosts.jsonl",
    ),
    _result("codec", partial(tables.codecs, dims=(64, 16)), "All codecs beside other compressors",
        "make bench-codec ARGS='--rows rows64.pt rows16.pt'",
    ),
)  # fmt: skip


def main() -> int:
    """Check or write; the exit status is 1 where they differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--check", action="store_true", help="compare only")
    choice.add_argument("--write", action="store_true", help="replace the sections")
    arguments = parser.parse_args()
    different = []
    for section in SECTIONS:
        text = section.page.read_text()
        made = section.put_into(text)
        if made != text:
            different.append(f"{section.page.name} with {section.records}")
            if arguments.write:
                section.page.write_text(made)
    done = "written" if arguments.write else "differs"
    print(f"{done}: {', '.join(different)}" if different else "all sections agree with the records")
    return int(bool(different) and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
