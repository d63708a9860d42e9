"""The commands of the tool chain on the rows of --data: attribution, search, lifespan.

Knows: command lines of examples/criteo. Does not know: what their records say.
"""

from __future__ import annotations

from pathlib import Path

import attribution
import lifespan
import search
from emulation.client import EmulatedTrainer

from examples.papers.parts import Request
from examples.papers.tool_chain.recorded import call
from examples.papers.trainings import LIMITS
from trec_qcomm import quality
from trec_qcomm.config import load_config
from trec_qcomm.lab.search.command import main as search_main

COARSE = """# Coarse enough that a table's codec shows in the loss.
embedding:
  - tables: ["*"]
    forward: {codec: error_bounded, bound: 0.3, mode: rel}
    backward: {codec: identity}
"""
PLAN = "plan.yaml"


def see(folder: Path, request: Request) -> None:
    """Attribute the loss of a coarse config to its tables, and train each table alone with it."""
    seeds = request.seeds or 3
    config = folder / "coarse.yaml"
    config.write_text(COARSE)
    words = ["--config", config, "--seeds", str(seeds), "--out", folder]
    call(attribution.main, [*words, *request.words])
    train = EmulatedTrainer.from_words(request.words)
    quality.study(
        train=train, configs={path.stem: path for path in (folder / "tables").glob("*.yaml")},
        seeds=seeds, limits=LIMITS, setup=train.setup, num_ranks=train.options.ranks,
        jobs=request.jobs, path=folder / "trainings.jsonl", name="see",
    )  # fmt: skip


def choose(folder: Path, request: Request) -> None:
    """Search codecs within a budget of loss, and judge the plan by other seeds."""
    plan, seeds = folder / PLAN, request.seeds or 50
    if not plan.exists():
        few = [] if request.seeds is None else ["--probe-seeds", "1", "--calibration-seeds", "1"]
        words = [
            "--verification-seeds",
            "0",
            "--out",
            plan,
            "--path",
            folder / "search",
            "--resume",
        ]
        call(_search, [*words, *few, *request.words])
    train = EmulatedTrainer.from_words(request.words)
    quality.study(
        train=train, configs={"searched": load_config(plan)}, seeds=seeds, limits=LIMITS,
        setup=train.setup, num_ranks=train.options.ranks, jobs=request.jobs,
        path=folder / "gate.jsonl", name="choose",
    )  # fmt: skip


def guard(folder: Path, request: Request) -> None:
    """Let a table change within trainings: with fixed codecs, and with a guard over them."""
    plan = folder.parent / "choose" / PLAN
    config = plan if plan.exists() else "unique_int4"
    words = ["--config", config, "--drift", "none", "shift:C14", "--seeds", request.seeds or 6]
    small = ["--at-step", "80", "--probes", "4"] if request.seeds is None else _FEW_STEPS
    call(lifespan.main, [*words, *small, "--out", folder, *request.words])


_FEW_STEPS = ["--at-step", "4", "--every", "2", "--probes", "1"]


def _search() -> int:
    return search_main(make=search.criteo)
