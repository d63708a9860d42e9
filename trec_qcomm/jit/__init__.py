"""Decorators for functions that numba compiles for the CPU when they are first called.

    @kernel         a function that Python calls
    @inner          one that only kernels call; `@inner(forceinline=True)` takes options of numba

Compiled kernels are kept as files in `cache.folder()`. An inner function is compiled into each
kernel that calls it. It has no file, and no code that takes Python objects, so it compiles faster.
Called from Python it runs as plain Python.

Where numba is not installed, `numba` is None and all functions are plain Python. ops.dispatch then
takes an op's reference. Only what has none runs as Python: a few numbers a segment.

Knows: numba, files. Does not know: what kernels do.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trec_qcomm.jit import cache

try:
    import numba as numba  # other modules take it from here
except ModuleNotFoundError as error:
    if error.name != "numba":  # it is installed, and broken
        raise
    numba = None

Function = Callable[..., Any]
COMPILES = numba is not None and not numba.config.DISABLE_JIT


def kernel(function: Function) -> Any:
    """Compile a function that Python calls, and keep it on disk. It runs without the GIL."""
    if not COMPILES:
        return function
    dispatcher = numba.njit(nogil=True, no_cfunc_wrapper=True)(function)
    _keep_on_disk(dispatcher)
    return dispatcher


def inner(
    function: Function | None = None, *, plain: Function | None = None, **options: Any
) -> Any:
    """Compile a function into the kernels that call it.

    Args:
        plain: function that takes its place where nothing is compiled: a loop in Python is slow.
        options: options of numba.jit.
    """
    if function is None:
        return lambda function: inner(function, plain=plain, **options)
    if not COMPILES:
        return plain or function
    if "_nrt" in options:  # register_jitable does not pass it on
        return numba.njit(nogil=True, no_cfunc_wrapper=True, **options)(function)
    jitable = numba.extending.register_jitable
    return jitable(**options)(function) if options else jitable(function)


def intrinsic(function: Function) -> Any:
    """Let a function write the instructions of a call that only kernels make."""
    return function if numba is None else numba.extending.intrinsic(function)


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
