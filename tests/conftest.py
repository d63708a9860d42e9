"""Settings that must be made before numba and triton are first imported.

Numba's cache does not see a change in a function that a kernel inlines from another file. So tests
compile into a cache of their own, named after the content of all files but Triton's.
Without a GPU, Triton kernels are interpreted.
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
