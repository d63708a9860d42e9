"""How tests reach a browser, with a chromedriver that only answers: none needs to be installed."""

import json
import os
import stat
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.lab.report import browser

DRIVER = f"""#!{sys.executable}
import os, sys, time
open(os.environ["SEEN"], "w").write(os.environ["HOME"])
print("ChromeDriver was started successfully on port", os.environ["PORT"], flush=True)
time.sleep(60)
"""


class Answers(BaseHTTPRequestHandler):
    """A chromedriver that has one session and notes what it was asked."""

    def _answer(self):
        size = int(self.headers.get("Content-Length") or 0)
        self.server.asked.append((self.command, self.path, self.rfile.read(size)))
        body = json.dumps({"value": {"sessionId": "one"}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = _answer

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with HTTPServer(("127.0.0.1", 0), Answers) as answering:
        answering.asked = []
        thread = threading.Thread(target=answering.serve_forever, daemon=True)
        thread.start()
        yield answering
        answering.shutdown()
        thread.join(10)


@pytest.fixture
def driver(tmp_path, server, monkeypatch):
    """The file that says with which HOME the driver was started."""
    path = tmp_path / "chromedriver"
    path.write_text(DRIVER)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PORT", str(server.server_port))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    return tmp_path / "seen"


def test_a_proxy_is_not_asked(server, monkeypatch):
    """Nobody listens on port 9 of this machine."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    session = browser.Browser(f"http://127.0.0.1:{server.server_port}", "profile")
    assert session.run("return 1") == {"sessionId": "one"}
    assert [path for _, path, _ in server.asked] == ["/session", "/session/one/execute/sync"]


def test_the_browser_lives_in_its_profile(driver, server):
    """The browser is closed, and its folder is gone in the end."""
    with browser.browser():
        home = driver.read_text()
        assert os.path.isdir(home)
    options = json.loads(server.asked[0][2])["capabilities"]["alwaysMatch"]["goog:chromeOptions"]
    assert f"--user-data-dir={home}" in options["args"]
    assert server.asked[-1][:2] == ("DELETE", "/session/one")
    assert not os.path.exists(home)
