"""Every block of code of every page runs, or a table says why not.

Python blocks of the pages run on two ranks or in this process, in a folder where the commands of
the same pages then find what the blocks have written. A line `...` of a block takes training steps.
"""

import os
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner import Topology
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingPlan

import trec_qcomm
from tests.commands import run
from tests.docs.test_training_page import (
    DIM,
    FEATURES,
    FUSED_PARAMS,
    NUM_IDS,
    Model,
    batches,
    losses,
)
from trec_qcomm import QComm, quality
from trec_qcomm.config import config_from_dict, parse_yaml
from trec_qcomm.testing import run_ranks

ROOT = Path(__file__).parents[2]
FOLDERS = ("configs", "examples", "trec_qcomm")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", *(str(path.relative_to(ROOT)) for path in FILES)]
DOCS, EXAMPLES = "trec_qcomm/docs", "examples"
ELSEWHERE = {  # all blocks of these pages run in another test
    f"{DOCS}/TRAINING.md": "tests/docs/test_training_page.py",
    f"{DOCS}/EXTENDING.md": "tests/docs/test_extending.py",
    "configs/REFERENCE.md": "tests/configs/test_reference.py",
    "trec_qcomm/wire/FORMAT.md": "tests/wire/test_format_md.py",
}
HOURS, ROOT_USER, DATA = "takes hours", "needs root, tc and namespaces", "needs data of its own"
NETWORK, OLD = "installs packages", "is of an old commit, which it names"
CRITEO = "tests/examples/test_criteo_train.py trains with these options, for fewer steps"
SEQUENCES = "minutes; tests/examples/test_sequences_train.py trains and resumes it, for fewer steps"
LEFT_OUT = {  # (page, beginning of the block or command): why it does not run here
    ("README.md", "pip install"): NETWORK,
    ("README.md", "make "): f"{NETWORK}; or all tests, this among them",
    ("configs/README.md", "sharding: "): "all fields at once, of which some exclude one another",
    (f"{DOCS}/REPLICAS.md", "qcomm = QComm.from_dict("): "tests/ext/replicas trains these lines",
    (f"{DOCS}/GUIDE.md", "pip install"): NETWORK,
    (f"{DOCS}/DELTAS.md", "python examples"): "minutes; test_criteo_train.py takes 20 steps of it",
    (f"{DOCS}/LIBRARIES.md", "from library"): "tests/integration/embedding/test_libraries.py",
    (f"{DOCS}/LIBRARIES.md", "import functools"): "test_frameworks.py beside it does",
    (f"{DOCS}/LIBRARIES.md", "class Compressed"): NETWORK,
    (f"{DOCS}/SEARCH.md", "import trec_qcomm"): f"{HOURS}; tests/lab/search has fewer candidates",
    (f"{DOCS}/SEARCH.md", "python -m trec_qcomm search"): f"{HOURS}; tests/lab/search/test_command",
    (f"{DOCS}/SEARCH.md", "python examples/criteo"): f"{HOURS}, {DATA}",
    (f"{EXAMPLES}/results.md", "make bench-codec"): DATA,
    (f"{EXAMPLES}/bench/README.md", "python -m examples.bench.net"): ROOT_USER,
    (f"{EXAMPLES}/bench/README.md", "RANK=0 "): "needs GPUs",
    (f"{EXAMPLES}/results.md", "python -m examples.bench.net"): ROOT_USER,
    (f"{EXAMPLES}/results.md", "make chaos"): HOURS,
    (f"{EXAMPLES}/criteo/README.md", "a63d3dd:"): OLD,
    (f"{EXAMPLES}/criteo/README.md", "python examples/criteo/studies"): f"{HOURS}, {DATA}",
    (f"{EXAMPLES}/criteo/README.md", "python examples/criteo/compare.py"): CRITEO,
    (f"{EXAMPLES}/criteo/README.md", "python examples/criteo/train.py"): CRITEO,
    (f"{EXAMPLES}/criteo/README.md", "python examples/criteo/preprocess.py"): DATA,
    (f"{EXAMPLES}/criteo/README.md", "torchrun"): f"{CRITEO}; hosts of a user",
    (f"{EXAMPLES}/criteo/README.md", "export "): "hosts of a user",
    (f"{EXAMPLES}/papers/README.md", "python -m examples.papers"): f"{HOURS}, {DATA}",
    (f"{EXAMPLES}/sequences/README.md", "python -m examples.sequences"): SEQUENCES,
    (f"{EXAMPLES}/sequences/README.md", "torchrun"): SEQUENCES,
}
COMMAND = re.compile(r"(?:python|pip|make|torchrun|mkdir|export|for name|RANK=|[0-9a-f]{7}:)[ \w]?")


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the page's blocks as (language, text); each command of a shell is one, "command"."""
    text, found_blocks = (ROOT / page).read_text(encoding="utf-8"), []
    fenced = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
    for language, block in fenced.findall(text):
        if language in ("bash", "") and COMMAND.match(block):
            found_blocks += commands(block)
        elif language in ("python", "yaml", "diff"):
            found_blocks.append((language, block))
    indented = re.findall(r"^    (?! )(.*\n(?:      .*\n)*)", fenced.sub("", text), re.MULTILINE)
    return found_blocks + [c for block in indented if COMMAND.match(block) for c in commands(block)]


def commands(block: str) -> list[tuple[str, str]]:
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    return [("command", line) for line in lines if COMMAND.match(line)]


def why_not(page: str, text: str) -> list[tuple[str, str]]:
    return [key for key in LEFT_OUT if key[0] == page and text.startswith(key[1])]


def runnable(page: str, *languages: str) -> list[str]:
    if page in ELSEWHERE:
        return []
    return [text for kind, text in blocks(page) if kind in languages and not why_not(page, text)]


class Reader:
    """Names that the blocks of a page expect; `train` takes steps with the page's own QComm."""

    def __init__(self, config: dict) -> None:
        plan = construct_module_sharding_plan(
            Model().bags, {f"t_{n}": table_wise(rank=i % 2) for i, n in enumerate(FEATURES)},
            world_size=2, local_size=2, device_type="cpu",
        )  # fmt: skip
        for table in plan.values():
            table.compute_kernel = EmbeddingComputeKernel.FUSED.value
        device = torch.device("cpu")
        self.sharded = None
        self.names = {
            "trec_qcomm": trec_qcomm, "QComm": QComm, "qcomm": QComm(config_from_dict(config)),
            "plan": ShardingPlan({"bags": plan}), "device": device, "dlrm": Model(),
            "DistributedModelParallel": DistributedModelParallel, "fused_params": FUSED_PARAMS,
            "losses": [0.7, 0.6], "ne": 0.9, "batches": range(3), "train": self.train,
            "topology": Topology(world_size=2, compute_device="cpu"), "constraints": None,
            "ddp": DistributedDataParallel(nn.Linear(4, 2)), "probe_batch": batches(50, 1)[0],
            "losses_of": lambda batch: (self.model(batch)[1] - 1).square().flatten().repeat(2),
        }  # fmt: skip
        self.train(2)
        self.names |= {"model": self.model, "step": 0, "Path": Path}
        self.names["tables"] = {f"t_{n}": np.zeros((NUM_IDS, DIM), "f4") for n in FEATURES}

    def train(self, steps: int = 20) -> None:
        qcomm, names = self.names["qcomm"], self.names
        if self.sharded is not qcomm:
            arguments = qcomm.dmp_arguments(fused_params=FUSED_PARAMS)
            self.model = DistributedModelParallel(
                module=Model(), device=names["device"], plan=names["plan"], **arguments
            )
            self.optimizer = torch.optim.SGD(self.model.module.over.parameters(), lr=0.1)
            self.sharded = qcomm
        losses(self.model, self.optimizer, batches(0, steps))

    def run(self, page: str, block: str) -> None:
        block = re.sub(r"^( *)\.\.\.(  #.*)?$", r"\1train()", block, flags=re.MULTILINE)
        exec(compile(block, page, "exec"), self.names)


def on_two_ranks(folder: str) -> int:
    os.chdir(folder)
    num_run = 0
    for page in PAGES:
        if page.endswith("QUALITY.md"):
            continue
        config = {"embedding": [{"tables": "*", "forward": "float6", "backward": "float6"}]}
        if page.endswith("GUARD.md"):
            guard = parse_yaml(runnable(page, "yaml")[0], name=page)["guard"]
            config["guard"] = guard | {"every": 2}
        for block in runnable(page, "python", "diff"):
            if block.startswith("emulated"):
                continue
            lines = re.sub(r"^-.*\n", "", block, flags=re.MULTILINE)
            is_diff = lines != block
            Reader(config).run(page, re.sub(r"(?m)^[+ ] ", "", lines) if is_diff else block)
            dist.barrier()  # before the next block reads a file of this one
            num_run += 1
    return num_run


@pytest.mark.dist
def test_every_block_and_then_every_command_of_the_pages_runs(tmp_path, monkeypatch):
    (tmp_path / "my.yaml").write_text((ROOT / "configs" / "int8.yaml").read_text())
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert set(run_ranks(on_two_ranks, 2, str(tmp_path), timeout_s=300)) == {17}
    monkeypatch.chdir(tmp_path)
    study(runnable(f"{DOCS}/QUALITY.md", "python"))
    (tmp_path / "my.yaml").unlink()  # a command writes it
    pages = [f"{DOCS}/SAVINGS.md", *(page for page in PAGES if not page.startswith(EXAMPLES))]
    done = [c for page in dict.fromkeys(pages) for c in runnable(page, "command")]
    for command in done:
        words = [sys.executable, *shlex.split(command, comments=True)[1:]]
        ended = run(words, cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 0 or " debug " in command, (command, ended.stderr[-900:])
        assert "Traceback" not in ended.stderr, command
    assert len(done) == 10


def study(texts: list[str]) -> None:
    """Run the page of studies with 5 seeds, whose trainings are no training."""
    names = {
        "__name__": "__main__", "build": lambda seed: Model(), "Limits": quality.Limits,
        "run": lambda emulated: ([0.7, 0.6], 0.6), "fused_params": FUSED_PARAMS,
    }  # fmt: skip
    assert "seeds=50" in texts[0]
    for text in texts:
        exec(compile(text.replace("seeds=50", "seeds=5"), "QUALITY.md", "exec"), names)


def test_the_guides_block_of_emulated_ranks_runs():
    (block,) = (b for b in runnable(f"{DOCS}/GUIDE.md", "python") if b.startswith("emulated"))
    names = {
        "trec_qcomm": trec_qcomm, "model": Model(), "loader": [[0] * 4, [1] * 4], "tests": [2] * 4,
        "make_optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        "train_step": lambda model, optimizer, n: losses(model, optimizer, batches(n, 1)),
        "evaluate": lambda model, qcomm, n: model(batches(n, 1)[0])[0].item(),
    }  # fmt: skip
    exec(compile(block, "GUIDE.md", "exec"), names)
    assert len(names["scores"]) == len(names["losses"]) == 4


@pytest.mark.parametrize("page", PAGES)
def test_yaml_of_a_page_is_a_configuration(page):
    for text in runnable(page, "yaml"):
        rule = {"tables": "*", "forward": "float6", "backward": "float6"}
        config_from_dict({"embedding": [rule]} | parse_yaml(text, name=page))


def test_what_does_not_run_is_in_the_table_and_the_table_has_nothing_else():
    used = {key for page in PAGES for _, text in blocks(page) for key in why_not(page, text)}
    assert set(LEFT_OUT) == used
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")
