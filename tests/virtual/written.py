"""Which arguments a Triton kernel writes to, as its source tells."""

import ast
import inspect
import textwrap
from functools import cache
from typing import Any


@cache
def written_arguments(function: Any) -> frozenset[str]:
    """Return the parameters through which a jitted function, or one that it calls, stores.

    Followed are pointers and what is added to them, through assignments, methods and functions of
    triton.language. What `tl.load` returns is a value, and so is what other functions return.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (definition,) = tree.body
    parameters = [argument.arg for argument in definition.args.args]
    sources: dict[str, set[str]] = {name: {name} for name in parameters}
    nodes = list(ast.walk(definition))
    for _ in range(3):  # an assignment may stand behind a use in a loop
        for node in nodes:
            if isinstance(node, ast.Assign):
                names = _sources(node.value, sources)
                for target in ast.walk(ast.Tuple(node.targets)):
                    if isinstance(target, ast.Name):
                        sources[target.id] = sources.get(target.id, set()) | names
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                names = _sources(node.value, sources)
                sources[node.target.id] = sources.get(node.target.id, set()) | names
    written: set[str] = set()
    for call in nodes:
        if isinstance(call, ast.Call):
            for pointer in _written_in_call(call, function):
                written |= _sources(pointer, sources)
    return frozenset(written & set(parameters))


def _written_in_call(call: ast.Call, caller: Any) -> list[ast.expr]:
    """Return the expressions among a call's arguments through which it stores."""
    if _is_tl(call.func):
        name = call.func.attr
        return call.args[:1] if name == "store" or name.startswith("atomic_") else []
    if not isinstance(call.func, ast.Name):
        return []
    called = getattr(caller.__globals__.get(call.func.id), "fn", None)
    if called is None:
        return []
    written = written_arguments(called)
    names = inspect.signature(called).parameters
    given = dict(zip(names, call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    return [expression for name, expression in given.items() if name in written]


def _is_tl(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "tl"
    )


def _sources(expression: ast.expr, sources: dict[str, set[str]]) -> set[str]:
    """Return the parameters that an expression may point to."""
    if isinstance(expression, ast.Name):
        return sources.get(expression.id, set())
    if isinstance(expression, ast.Call):
        if _is_tl(expression.func):
            if expression.func.attr == "load" or expression.func.attr.startswith("atomic_"):
                return set()
        elif not isinstance(expression.func, ast.Attribute):
            return set()  # a function of ours returns values
    parts = [n for n in ast.iter_child_nodes(expression) if isinstance(n, ast.expr)]
    return set().union(*(_sources(part, sources) for part in parts))
