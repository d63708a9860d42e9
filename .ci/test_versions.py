"""Run the tests of all that touches TorchRec on several versions, on one torch and one FBGEMM.

  test_versions.py                          all of .pins/versions.txt
  test_versions.py 1.6.1 1.9.2              these
  test_versions.py 1.9.2 -- -x -k int4      what follows -- goes to pytest
  test_versions.py 1.9.2 --suite tests/integration/embedding

The first run downloads each version into .venv/torchrec; the next downloads nothing. The exit
status is 1 if a version failed. This file is a pytest plugin, too: before the first test it makes
sure that pytest and the ranks that it spawns import the version under test.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / ".pins" / "versions.txt"
CACHE = ROOT / ".venv" / "torchrec"
SUITE = ["tests/integration", "tests/ext/replicas", "tests/ext/planner"]
EXPECTED = "TREC_QCOMM_TEST_TORCHREC"  # the folder to import torchrec from, named by its version


@dataclass
class Result:
    """Outcome of the tests on one version."""

    version: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    note: str = ""
    ok: bool = False


def main() -> int:
    """Test all versions asked for, show a table, and return the exit status."""
    own_arguments, to_pytest = _split(sys.argv[1:])
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [-h] [--suite PATH [PATH ...]] [VERSION ...] [-- PYTEST_OPTION ...]",
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"default: {PINS.name}")
    parser.add_argument("--suite", nargs="+", default=SUITE, metavar="PATH", help="tests to run")
    arguments = parser.parse_args(own_arguments)
    results: list[Result] = []
    versions = arguments.versions or pinned()
    for number, version in enumerate(versions, start=1):
        print(f"[{number}/{len(versions)}] torchrec {version}", flush=True)
        results.append(run_version(version, [*arguments.suite, *to_pytest]))
    print(format_table(results))
    return 0 if all(result.ok for result in results) else 1


def pinned() -> list[str]:
    """Return the versions in the pins file."""
    lines = [line.strip() for line in PINS.read_text().splitlines()]
    return [line.removeprefix("torchrec==") for line in lines if line.startswith("torchrec==")]


def run_version(version: str, to_pytest: Sequence[str]) -> Result:
    """Download one version where it is missing, and test it."""
    try:
        folder = fetch(version)
    except subprocess.CalledProcessError:
        return Result(version, note="could not be downloaded, see above")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        plugin = ["-p", Path(__file__).stem, "-p", "no:cacheprovider", f"--junit-xml={report}"]
        status = subprocess.run(
            [sys.executable, "-m", "pytest", *plugin, *to_pytest], cwd=ROOT, env=environment(folder)
        ).returncode
        return read_report(version, status, report, time.perf_counter() - started)


def fetch(version: str) -> Path:
    """Return the folder to import a version from. A folder that exists is complete."""
    folder = CACHE / version
    if not folder.is_dir():
        print(f"  downloading to {folder.relative_to(ROOT)}", flush=True)
        unfinished = CACHE / f"unfinished-{version}"
        shutil.rmtree(unfinished, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        wheel = ["--no-deps", "--only-binary=:all:", f"torchrec=={version}"]
        subprocess.run([*pip, *wheel, f"--target={unfinished}"], check=True)
        unfinished.rename(folder)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return this process's environment, with the version under test before what is installed."""
    path = [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    joined = os.pathsep.join(filter(None, path))
    return os.environ | {"PYTHONPATH": joined, EXPECTED: str(folder)}


def read_report(version: str, status: int, report: Path, seconds: float) -> Result:
    """Count what pytest reported. A run in which nothing passed is a failure."""
    if not report.is_file():
        return Result(version, note=f"pytest ended with status {status} before the first test")
    root = ElementTree.parse(report).getroot()
    tests, failures, errors, skipped = (
        sum(int(suite.get(name, "0")) for suite in root.iter("testsuite"))
        for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    passed = tests - failed - skipped
    note = f"{seconds:.0f} s"
    red = [case.get("name") for case in root.iter("testcase") if _failed(case)]
    if red:
        note += f"; first failure: {red[0]}"
    elif status or not passed:
        note += f"; pytest ended with status {status}"
    return Result(version, passed, failed, skipped, note, ok=status == 0 and passed > 0)


def format_table(results: Sequence[Result]) -> str:
    """Return a table with a line for each version."""
    rows = [("torchrec", "passed", "failed", "skipped", "", "note")]
    for r in results:
        verdict = "ok" if r.ok else "FAILED"
        rows.append((r.version, str(r.passed), str(r.failed), str(r.skipped), verdict, r.note))
    return "\n".join(
        f"{version:10} {passed:>6} {failed:>6} {skipped:>7}  {verdict:6} {note}".rstrip()
        for version, passed, failed, skipped, verdict, note in rows
    )


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:at]), list(arguments[at + 1 :])


def _failed(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def imported() -> tuple[str, str]:
    """Return the version of the torchrec that this process imports, and its folder."""
    import torchrec

    return torchrec.__version__, str(Path(torchrec.__file__).resolve().parents[1])


def pytest_sessionstart() -> None:
    """Compare what pytest and two ranks, spawned as the tests spawn theirs, import."""
    import pytest

    from trec_qcomm.testing import run_ranks

    folder = Path(os.environ[EXPECTED]).resolve()
    by_rank = {f"rank {rank}": what for rank, what in enumerate(run_ranks(imported, 2))}
    for who, what in ({"pytest": imported()} | by_rank).items():
        if what != (folder.name, str(folder)):
            pytest.exit(f"{who} imports torchrec {what}, not that of {folder}", returncode=3)


def pytest_report_header() -> str:
    """Name the version and the folder that the tests import."""
    folder = Path(os.environ[EXPECTED])
    where = folder.relative_to(ROOT)
    return f"torchrec: {folder.name} from {where}, in pytest and in the ranks that it spawns"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
