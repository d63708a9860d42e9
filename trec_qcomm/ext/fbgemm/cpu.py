"""Copy of coded rows in numba. Same bytes as reference.py."""

from functools import partial

from trec_qcomm.ext.fbgemm import rows
from trec_qcomm.jit import kernel
from trec_qcomm.ops.dispatch import arrays


def copy(source, source_at, target, target_at, sizes, *, width, pads):
    """Copy the segments; see `rows`."""
    _copy(*arrays(source, source_at, target, target_at, sizes), pads)


encode, decode = partial(rows.encode, copy), partial(rows.decode, copy)


@kernel
def _copy(source, source_at, target, target_at, sizes, pads):
    """Copy sizes[s] bytes of each segment, and write zeros up to a multiple of 8 where `pads`."""
    for s in range(sizes.size):
        size = sizes[s]
        line = source[source_at[s] : source_at[s] + size]
        to = target[target_at[s] : target_at[s] + size]
        for k in range(size):
            to[k] = line[k]
        if pads:
            target[target_at[s] + size : target_at[s] + (size + 7) // 8 * 8] = 0
