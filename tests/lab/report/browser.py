"""A headless Chromium that a test looks at a page with, through chromedriver's own protocol (W3C
WebDriver over HTTP, and Chrome's DevTools commands), so that no package is needed for it.

Debian: packages chromium and chromium-driver.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMEOUT_S = 150  # two cores that others use take long to start it
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",  # containers have 64 MB there
)  # fmt: skip
# Whatever http_proxy says: chromedriver is on this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def missing() -> str | None:
    """What this machine lacks, with the names of the packages; None if nothing."""
    commands = {"chromium": "chromium", "chromedriver": "chromium-driver"}
    lacks = [package for command, package in commands.items() if shutil.which(command) is None]
    return f"not installed: Debian's {' and '.join(lacks)}" if lacks else None


class Browser:
    """One session. Args: address: of chromedriver.  profile: an empty folder."""

    def __init__(self, address: str, profile: str) -> None:
        self._address = address
        options = {
            "binary": shutil.which("chromium"),
            "args": [*FLAGS, f"--user-data-dir={profile}"],
        }
        asked = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": asked}})
        self._address += f"/session/{made['sessionId']}"

    def open(self, page: Path, *, width: int, dark: bool = False) -> None:
        """Load the page in a window so wide, in CSS pixels, and forget what was logged before."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._devtools("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._call("POST", "/url", {"url": "about:blank"})  # away from Chromium's own first page
        self.console(), self.requests()
        self._call("POST", "/url", {"url": page.resolve().as_uri()})

    def run(self, script: str) -> Any:
        """What a script of the page returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": []})

    def console(self) -> list[str]:
        """Messages since the last look."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the last look."""
        entries = self._call("POST", "/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in entries]
        sent = [e for e in events if e["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def close(self) -> None:
        self._call("DELETE", "", None)

    def _devtools(self, command: str, parameters: dict[str, Any]) -> None:
        body = {"cmd": command, "params": parameters}
        self._call("POST", "/goog/cdp/execute", body)

    def _call(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)["value"]


@contextmanager
def browser() -> Iterator[Browser]:
    """Started and, whatever happens, ended, with its profile, which is its home, too."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=os.environ | {"HOME": profile},
        )  # fmt: skip
        give_up = threading.Timer(TIMEOUT_S, driver.kill)
        give_up.start()
        try:
            assert driver.stdout is not None
            said = (re.search(r"successfully on port (\d+)", line) for line in driver.stdout)
            port = next((match[1] for match in said if match), None)
            assert port is not None, "chromedriver did not start"
            give_up.cancel()
            session = Browser(f"http://127.0.0.1:{port}", profile)
            try:
                yield session
            finally:
                session.close()
        finally:
            give_up.cancel()
            driver.kill()
            driver.wait(TIMEOUT_S)
