"""Settings that must be made before numba and triton are first imported.

Tests compile into a folder of their own, and not into the checkout.
Without a GPU, Triton kernels are interpreted.
"""

import os
import tempfile

import torch

os.environ.setdefault("NUMBA_CACHE_DIR", f"{tempfile.gettempdir()}/trec_qcomm_numba_{os.getuid()}")

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
