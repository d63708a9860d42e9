"""Emulated hosts: networks that a netlab command holds open while ranks run in them.

The command is started with a placeholder for each host, which does nothing; a rank enters the
network of one. Of the command this needs: --hosts, --rate, --loss, --timeout, then `--` and a
command that it runs once a host, with RANK, WORLD_SIZE, MASTER_ADDR and so on set.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from types import TracebackType

_VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS",
)  # fmt: skip


class Network:
    """Hosts on a network of their own; a context manager.

    Args: netlab: the command.  folder: where the placeholders leave their process ids.
    Derived: placeholders: a process of each host.
    """

    def __init__(self, netlab: Path, folder: Path, *, hosts: int, loss: float, rate: str) -> None:
        self.hosts, self.folder = hosts, folder
        self.placeholders: list[int] = []
        wait = f'echo $$ > "{folder}/host$RANK"; exec sleep 100000'
        self._command = [
            str(netlab), "--hosts", str(hosts), "--rate", rate, "--loss", str(loss),
            "--timeout", "3600", "--", "sh", "-c", wait,
        ]  # fmt: skip

    def __enter__(self) -> Network:
        with (self.folder / "netlab.log").open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        files = [self.folder / f"host{host}" for host in range(self.hosts)]
        deadline = time.monotonic() + 60
        while not all(file.exists() and file.read_text().endswith("\n") for file in files):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                text = (self.folder / "netlab.log").read_text()
                raise RuntimeError(f"{self._command[0]} did not start the hosts:\n{text}")
            time.sleep(0.05)
        self.placeholders = [int(file.read_text()) for file in files]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)

    def environment(self, rank: int) -> dict[str, str]:
        """Return what the command set for a host, of the variables that a rank reads."""
        entries = Path(f"/proc/{self.placeholders[rank]}/environ").read_bytes().split(b"\0")
        pairs = dict(entry.decode().split("=", 1) for entry in entries if b"=" in entry)
        return {name: pairs[name] for name in _VARIABLES if name in pairs}
