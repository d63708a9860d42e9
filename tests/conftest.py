"""Numba's cache does not see a change in a function that a kernel inlines from another file, so
tests compile into a cache of their own, named after the content of all files but those of Triton.

Without a GPU, Triton kernels are interpreted; that is decided before triton is first imported.
"""

import os
import tempfile
import zlib
from pathlib import Path

import torch

_package = Path(__file__).parents[1] / "trec_qcomm"
_sources = sorted([*_package.glob("ops/**/*.py"), *_package.glob("wire/*.py")])
_texts = [text for text in (path.read_text() for path in _sources) if "import triton" not in text]
_key = zlib.crc32("".join(_texts).encode())
_folder = Path(tempfile.gettempdir()) / f"trec_qcomm_numba_{os.getuid()}_{_key:08x}"
os.environ.setdefault("NUMBA_CACHE_DIR", str(_folder))

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
