"""Triton's interpreter, made some five times faster, for kernels of many short steps.

Two things are left out. The interpreter prepares triton.language anew at each call of a device
function, which is needed once. It checks every sum of integers for an overflow; other tests of
these functions run with that check.
"""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from unittest import mock

import torch


def fast_interpreter():
    """Return a context in which the interpreter is faster; on a GPU it changes nothing."""
    return nullcontext() if torch.cuda.is_available() else _fast_interpreter()


def interpreter_for(segments):
    """Return a context with Triton's own interpreter for few rows of dim 7, else with the faster.

    So each kernel of a test that goes through dims runs once with the check of its sums.
    """
    is_checked = segments.num_segments <= 6 and segments.dim == 7
    return nullcontext() if is_checked else fast_interpreter()


@contextmanager
def _fast_interpreter():
    from triton.runtime import interpreter

    call, prepared = interpreter.InterpretedFunction.__call__, set()

    def called(self, *args, **options):
        if self.fn in prepared:
            return self.rewrite()(*args, **options)
        prepared.add(self.fn)
        return call(self, *args, **options)

    builder = interpreter.interpreter_builder
    unchecked = replace(builder.options, sanitize_overflow=False)
    with (
        mock.patch.object(interpreter.InterpretedFunction, "__call__", called),
        mock.patch.object(builder, "options", unchecked),
    ):
        yield
