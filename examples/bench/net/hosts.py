"""Hosts of a network of a given speed, on one Linux machine: namespaces, links, token buckets.

Each host is a network namespace with an address of its own, joined to the others by a bridge in one
more namespace; nothing outside of them is touched. What a host sends passes a token-bucket filter,
so its bytes take the time they would take on such a link. Needs root and iproute2.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

_SUBNET, _PORT = "10.77.0", "29500"
# Burst and queue of the bucket: at 10 Gbit/s what leaves between two ticks of the kernel, and
# little at 100 Mbit/s.
_BURST, _QUEUE = "256kb", "200ms"
_GRACE_S = 10.0  # for the other hosts to say what they saw of one that failed


def missing() -> list[str]:
    """Return what this machine lacks to emulate hosts, as phrases; empty if nothing."""
    absent = [name for name in ("ip", "tc") if shutil.which(name) is None]
    needs = [f"the command {name} (package iproute2)" for name in absent]
    return needs if os.geteuid() == 0 else [*needs, "root"]


class Hosts:
    """A context manager: the network is there within, and gone after.

    Args:
        count: number of hosts, 2 to 250.
        rate: rate of each link as tc writes it ("100mbit"), or "none".
        delay: delay one way as tc writes it ("1ms"), or None.
        ranks: number of ranks of each host. They reach one another without its link.
    """

    def __init__(self, count: int, rate: str, delay: str | None = None, *, ranks: int = 1) -> None:
        if not 2 <= count <= 250:
            raise ValueError(f"hosts {count}: expected 2 to 250")
        if ranks < 1:
            raise ValueError(f"ranks_per_host {ranks}: expected 1 or more")
        self.count, self.rate, self.delay, self.ranks = count, rate, delay, ranks
        self._tag = f"qc{os.getpid()}"

    def __enter__(self) -> Hosts:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._remove()

    def run(self, command: Sequence[str], *, timeout_s: float) -> None:
        """Run the command once a rank, with what torchrun would set in its environment.

        Raises: RuntimeError: a host that failed, or one that had not ended in time. All are then
            killed.
        """
        running = [self.start(rank, command) for rank in range(self.count * self.ranks)]
        try:
            self._wait(running, time.monotonic() + timeout_s)
        finally:
            for process in running:
                process.kill()
                process.wait()

    def start(self, rank: int, command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        """Start the command as one rank. Args: how: more arguments of Popen."""
        enter = ["ip", "netns", "exec", self._name(rank // self.ranks)]
        return subprocess.Popen([*enter, *command], env=os.environ | self._environment(rank), **how)

    def lose(self, percent: float) -> None:
        """Let every host lose so many of the packets that reach it. Needs nftables."""
        drop = f"iif eth0 numgen random mod 100000 < {round(1000 * percent)} drop"
        chain = "{ type filter hook input priority 0; }"
        for name in map(self._name, range(self.count)):
            nft = ("ip", "netns", "exec", name, "nft")
            _run(*nft, "add table inet lossy")
            _run(*nft, f"add chain inet lossy input {chain}")
            _run(*nft, f"add rule inet lossy input {drop}")

    def cut(self, seconds: float) -> None:
        """Take the whole network down for some seconds, and return when it is up again."""
        bridge = ("-n", f"{self._tag}s", "link", "set", "br0")
        _ip(*bridge, "down")
        time.sleep(seconds)
        _ip(*bridge, "up")

    def _wait(self, running: Sequence[subprocess.Popen[bytes]], deadline: float) -> None:
        failed: list[int] = []
        while any(process.poll() is None for process in running) and time.monotonic() < deadline:
            time.sleep(0.05)
            if not failed:
                failed = [r for r, process in enumerate(running) if process.poll() not in (None, 0)]
                if failed:
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
        for rank in failed or range(len(running)):
            code = running[rank].poll()
            if code != 0:
                end = "did not end in time" if code is None else f"failed: {_how_ended(code)}"
                host = rank // self.ranks
                raise RuntimeError(f"host {host} of {self.count} at {self.rate} {end}")

    def _environment(self, rank: int) -> dict[str, str]:
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.count * self.ranks),
            "LOCAL_RANK": str(rank % self.ranks),
            "LOCAL_WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": f"{_SUBNET}.1",
            "MASTER_PORT": _PORT,
            "GLOO_SOCKET_IFNAME": "eth0",
            "NCCL_SOCKET_IFNAME": "eth0",
        }

    def _name(self, host: int) -> str:
        return f"{self._tag}h{host}"

    def _build(self) -> None:
        switch = f"{self._tag}s"
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for host in range(self.count):
            name, port = self._name(host), f"p{host}"
            _ip("netns", "add", name)
            ends = ("netns", switch, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "add", port, *ends)
            _ip("-n", switch, "link", "set", port, "master", "br0", "up")
            _ip("-n", name, "address", "add", f"{_SUBNET}.{host + 1}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", name, "link", "set", device, "up")
            self._shape(name)

    def _shape(self, name: str) -> None:
        add, parent = ("tc", "-n", name, "qdisc", "add", "dev", "eth0"), ("root",)
        if self.rate != "none":
            bucket = ("tbf", "rate", self.rate, "burst", _BURST, "latency", _QUEUE)
            _run(*add, "root", "handle", "1:", *bucket)
            parent = ("parent", "1:1")
        if self.delay:
            _run(*add, *parent, "netem", "delay", self.delay, "limit", "100000")

    def _remove(self) -> None:
        for name in (*map(self._name, range(self.count)), f"{self._tag}s"):
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)


def _how_ended(code: int) -> str:
    """Return the words for an exit code of subprocess: negative is the number of a signal."""
    return f"exit status {code}" if code > 0 else signal.Signals(-code).name


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
