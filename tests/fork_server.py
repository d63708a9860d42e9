"""The server that ranks and commands of tests are forked from.

`run_ranks` starts one itself, which has imported the package alone. This one is started before the
first test, with all that tests' processes need: tests/preloaded.py.
"""

import multiprocessing
from multiprocessing import forkserver

import torch

# FBGEMM asks for CUDA when it is imported, and no fork of a process that did can use a GPU.
CAN_PRELOAD = torch.version.cuda is None


def start() -> None:
    """Start the server of this process, if it has none. It imports while the caller goes on."""
    if CAN_PRELOAD:
        multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.preloaded"])
        forkserver.ensure_running()
