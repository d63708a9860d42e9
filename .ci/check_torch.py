"""Check that an older torch has every name the package uses, by that torch's type information.

  check_torch.py                 torch 2.11.0, what the oldest supported CUDA image ships
  check_torch.py 2.11.0 2.12.0   these

The first run downloads each wheel (half a GB; nothing of it is installed or imported) into
.venv/torch-api and keeps its sources; the next downloads nothing. A name of torch that the version
lacks, or a method that its tensors lack, is shown and makes the exit status 1. That the check sees
such a name is itself checked each time. What functions do, and how, is not.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".venv" / "torch-api"
OLDEST = "2.11.0"
PROBE = "import torch\n\nprint(torch.of_no_version, torch.ones(1).of_no_version)\n"


def main() -> int:
    """Check the versions asked for and return the exit status: 1 if a name is missing."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    failed = 0
    for version in sys.argv[1:] or [OLDEST]:
        missing = missing_names(sources(version))
        print("\n".join([*missing, f"torch {version}: {len(missing)} names missing"]), flush=True)
        failed += bool(missing)
    return 1 if failed else 0


def sources(version: str) -> Path:
    """Return a folder with the Python files of a torch, downloaded if need be."""
    folder = CACHE / version
    if folder.exists():
        return folder
    print(f"downloading torch {version}", flush=True)
    with tempfile.TemporaryDirectory() as wheels:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels]
        subprocess.run([*pip, f"torch=={version}"], check=True)
        (wheel,) = Path(wheels).glob("*.whl")
        part = folder.with_suffix(".part")
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.endswith((".py", ".pyi", "py.typed"))]
            archive.extractall(part, [n for n in names if n.startswith("torch/")])
    part.rename(folder)
    return folder


def missing_names(folder: Path) -> list[str]:
    """Return mypy's lines about missing names. Raise RuntimeError if it missed the probe."""
    with tempfile.TemporaryDirectory() as temporary:
        probe = Path(temporary) / "probe.py"
        probe.write_text(PROBE)
        # Not the project's settings, which leave kernels out.
        options = ["--config-file", os.devnull, "--ignore-missing-imports"]
        options += ["--follow-imports", "silent", "--cache-dir", f"{folder}.mypy"]
        done = subprocess.run(
            [sys.executable, "-m", "mypy", *options, "trec_qcomm", str(probe)],
            cwd=ROOT, env=os.environ | {"MYPYPATH": str(folder)}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.endswith("[attr-defined]")]
    if sum("of_no_version" in line for line in lines) != 2:
        raise RuntimeError(f"the check itself does not work:\n{done.stdout}{done.stderr}")
    return [line for line in lines if "of_no_version" not in line]


if __name__ == "__main__":
    sys.exit(main())
