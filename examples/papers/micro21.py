"""Low-precision recommendation at scale (Deng et al. 2021): the claims, and what holds here.

  python examples/papers/micro21.py --show
  python examples/papers/micro21.py --show --report runs/micro21.html
  python examples/papers/micro21.py --data train.txt --jobs 2 --out runs/papers/micro21
  python examples/papers/micro21.py --seeds 1 --rows 2048 --embedding-dim 4 --out runs/papers/toy

The tool chain end to end: see which tables' codecs cost loss, choose codecs within a budget, guard
them while a model lives. Each part runs a command of examples/criteo, in a folder of its own in
--out, where it goes on after Ctrl-C, and OUT/report.html is one page of all three. Other options
are those of examples/criteo/train.py; without --data the rows are synthetic.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "criteo")]

from examples.papers.command import main  # noqa: E402
from examples.papers.parts import Paper  # noqa: E402
from examples.papers.tool_chain import commands, figures, verdicts  # noqa: E402
from examples.papers.tool_chain.recorded import RecordedPart  # noqa: E402

CRITEO = ROOT / "examples" / "criteo"

PAPER = Paper(
    "micro21",
    "Low-precision recommendation at scale (Deng et al. 2021)",
    (
        RecordedPart(
            name="see",
            title="which tables' codecs cost loss, beside a training for each table; 30 min",
            measure=commands.see,
            decide=verdicts.see,
            committed=CRITEO / "single_tables",
            trained=["trainings.jsonl"],
        ),
        RecordedPart(
            name="choose",
            title="a searched codec for every table, judged by 50 other seeds; 1 h",
            measure=commands.choose,
            decide=verdicts.choose,
            committed=CRITEO / "searched",
            trained=["calibration.jsonl", "gate.jsonl"],
        ),
        RecordedPart(
            name="guard",
            title="a table changes while a model lives, with a guard and without; 10 min",
            measure=commands.guard,
            decide=verdicts.guard,
            committed=CRITEO / "lifespans",
        ),
    ),
    figures.draw,
)

if __name__ == "__main__":
    sys.exit(main(PAPER, __doc__))
