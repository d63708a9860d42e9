"""What happens inside a rank: marks of the phases that it reaches, and the fault in one of them.

Knows: the functions of examples/criteo and torch's writer of checkpoints, which it wraps. Does not
know: other ranks. A mark is a line "SECONDS NAME" in a file of the rank.

    python -m tests.chaos.faults MARKS FAULT PHASE [argument of train.py ...]
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos.cases import FAULT_STEP

EXAMPLE = Path(__file__).parents[2] / "examples" / "criteo"
_Function = Callable[..., Any]
LINK = "eth0"  # as netlab names a host's


class Phases:
    """Marks of one rank.

    Args: file: where they go.  fault: name of the fault, for the victim; else None.  phase: when.
    """

    def __init__(self, file: Path, fault: str | None, phase: str) -> None:
        self.file, self.fault, self.phase = file, fault, phase
        self._seen: set[str] = set()
        self._is_finished = False

    def reach(self, phase: str) -> None:
        """Write the mark of a phase, once, and let the fault happen if it is due."""
        if phase in self._seen:
            return
        self._seen.add(phase)
        self._mark(phase)
        if self.fault is not None and phase == self.phase:
            self._mark("fault")
            _happen(self.fault)

    def finish(self) -> None:
        """Note that the training came to its end."""
        self._is_finished = True

    def leave(self, *_: Any) -> None:
        """Reach the phase "end", unless the process group is left because of an error."""
        if self._is_finished:
            self.reach("end")

    def _mark(self, name: str) -> None:
        with self.file.open("a") as lines:
            print(f"{time.time():.3f} {name}", file=lines)


def _happen(fault: str) -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault in ("cut", "cut5"):
        subprocess.run(["ip", "link", "set", LINK, "down"], check=True)
        if fault == "cut5":
            again = f"sleep 5; exec ip link set {LINK} up"
            subprocess.Popen(["sh", "-c", again], start_new_session=True, env={})


def read_marks(file: Path) -> dict[str, float]:
    """Return {name: time} of a rank's marks."""
    if not file.exists():
        return {}
    pairs = (line.split() for line in file.read_text().split("\n")[:-1])
    return {name: float(seconds) for seconds, name in pairs}


def install(phases: Phases) -> None:
    """Wrap the training's functions, in this process. Call it before train.main."""
    import ranks
    import torch.distributed as dist
    import train
    from torch.distributed.checkpoint import FileSystemWriter
    from trainer import Trainer

    _before(ranks, "join", lambda *_: phases.reach("join"))
    _before(train, "build_trainer", lambda *_: phases.reach("startup"))
    _before(Trainer, "train_next", functools.partial(_before_step, phases))
    _before(Trainer, "predict", lambda trainer, *_: _after_forward(trainer, phases, "evaluation"))
    _wrap(train, "run", after=phases.finish)
    _before(dist, "destroy_process_group", phases.leave)
    calls: list[None] = []

    def before_write(*_: Any) -> None:
        calls.append(None)
        if len(calls) == 2:
            phases.reach("save")

    _before(FileSystemWriter, "write_data", before_write)


def _before(owner: Any, name: str, call: _Function) -> None:
    _wrap(owner, name, before=call)


def _wrap(
    owner: Any, name: str, before: _Function = lambda *_: None, after: _Function = lambda: None
) -> None:
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before(*args)
        result = function(*args, **kwargs)
        after()
        return result

    setattr(owner, name, wrapped)


def _before_step(phases: Phases, trainer: Any, *_: Any) -> None:
    if not trainer.losses:
        phases.reach("first_step")
    if trainer.step == FAULT_STEP:
        _after_forward(trainer, phases, "training")


def _after_forward(trainer: Any, phases: Phases, phase: str) -> None:
    def hook(*_: Any) -> None:
        handle.remove()
        phases.reach(phase)

    handle = trainer.dmp.register_forward_hook(hook)


if __name__ == "__main__":
    sys.path.insert(0, str(EXAMPLE))
    import torchrec.metrics.ne  # noqa: F401  (what the evaluation imports)
    import train

    marks, fault, phase, *arguments = sys.argv[1:]
    sys.argv = [str(EXAMPLE / "train.py"), *arguments]
    install(Phases(Path(marks), None if fault == "none" else fault, phase))
    sys.exit(train.main())
