"""Copy arrays inside kernels.

For `target[:] = source` numba also compiles the text of an error for arrays of different sizes.
That text takes a second or two in every process that compiles such a kernel.
"""

import numpy as np

from trec_qcomm.jit import inner


@inner(plain=lambda source, target: np.copyto(target[: source.size], source))
def copy(source, target):
    """Copy source [N] to the first N elements of target, unchecked."""
    for k in range(source.size):
        target[k] = source[k]
