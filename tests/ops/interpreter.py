"""Triton's interpreter, made some eight times faster, for kernels of many short steps.

Two things are left out. The interpreter prepares triton.language anew at each call of a device
function, which is needed once. It checks every sum of integers for an overflow; other tests of
these functions run with that check. And what it works out of a shape or a type for each value, it
works out once.
"""

from contextlib import ExitStack, contextmanager, nullcontext
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
    from triton.language import core
    from triton.runtime import interpreter

    call, prepared = interpreter.InterpretedFunction.__call__, set()

    def called(self, *args, **options):
        if self.fn in prepared:
            return self.rewrite()(*args, **options)
        prepared.add(self.fn)
        return call(self, *args, **options)

    make_block, shape_of = core.block_type.__init__, {}

    def block(self, element_ty, shape):
        key = tuple(getattr(size, "value", size) for size in shape)
        if key not in shape_of:
            make_block(self, element_ty, shape)
            shape_of[key] = self.shape, self.numel, str(self.shape)
        self.element_ty = element_ty
        self.shape, self.numel, text = shape_of[key]
        self.name = f"<{text}, {element_ty}>"

    make_tensor, fields_of = core.tensor.__init__, {}

    def tensor(self, handle, type):
        key = tuple(type.shape.values) if type.is_block() else ()
        if key not in fields_of:
            make_tensor(self, handle, type)
            fields_of[key] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = fields_of[key]

    numpy_dtype, dtype_of = interpreter._get_np_dtype, {}

    def np_dtype(type):
        scalar = type.scalar.name
        if scalar not in dtype_of:
            dtype_of[scalar] = numpy_dtype(type)
        return dtype_of[scalar]

    builder = interpreter.interpreter_builder
    unchecked = replace(builder.options, sanitize_overflow=False)
    with ExitStack() as stack:
        for owner, name, new in (
            (interpreter.InterpretedFunction, "__call__", called),
            (core.block_type, "__init__", block),
            (core.tensor, "__init__", tensor),
            (interpreter, "_get_np_dtype", np_dtype),
            (builder, "options", unchecked),
        ):
            stack.enter_context(mock.patch.object(owner, name, new))
        yield
