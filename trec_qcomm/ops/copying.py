"""Copy arrays inside kernels.

For `target[:] = source` numba also compiles the text of an error for arrays of different sizes.
That text takes a second or two in every process that compiles such a kernel.
"""

from trec_qcomm.jit import inner


@inner
def copy(source, target):
    """Copy source [N] to the first N elements of target, unchecked."""
    for k in range(source.size):
        target[k] = source[k]
