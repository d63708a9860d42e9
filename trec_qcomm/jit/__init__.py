"""Decorators for functions that numba compiles for the CPU when they are first called.

    @kernel         a function that Python calls
    @inner          one that only kernels call; `@inner(forceinline=True)` takes options of numba

Compiled kernels are kept as files in `cache.folder()`. An inner function is compiled into each
kernel that calls it. It has no file, and no code that takes Python objects, so it compiles faster.
Called from Python it runs as plain Python.

Knows: numba, files. Does not know: what kernels do.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.extending import register_jitable

from trec_qcomm.jit import cache

Function = Callable[..., Any]


def kernel(function: Function) -> Any:
    """Compile a function that Python calls, and keep it on disk. It runs without the GIL."""
    dispatcher = numba.njit(nogil=True, no_cfunc_wrapper=True)(function)
    if not numba.config.DISABLE_JIT:
        _keep_on_disk(dispatcher)
    return dispatcher


def inner(function: Function | None = None, **options: Any) -> Any:
    """Compile a function into the kernels that call it. Args: options: options of numba.jit."""
    if function is None:
        return lambda function: inner(function, **options)
    if "_nrt" in options:  # register_jitable does not pass it on
        return numba.njit(nogil=True, no_cfunc_wrapper=True, **options)(function)
    return register_jitable(**options)(function) if options else register_jitable(function)


def _keep_on_disk(dispatcher: Any) -> None:
    """Let numba load this kernel from the folder, or store it there; not where there is none."""
    folder = cache.folder()
    if folder is None:
        return
    numba.config.CACHE_DIR, before = str(folder), numba.config.CACHE_DIR
    try:
        dispatcher.enable_caching()
    except RuntimeError:  # the folder was writable a moment ago: compiled in each process, then
        cache.warn(f"{Path(folder)} cannot be written any more")
    finally:
        numba.config.CACHE_DIR = before
