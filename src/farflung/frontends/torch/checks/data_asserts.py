"""Leave out statements that only check data: a graph has no values to check, and the statement computes nothing.

These are ``assert`` statements, and ``if`` statements that do nothing but raise an error. ``python -O`` leaves out all of the
first. Here only functions whose check stopped a trace go without, and only while it lasts.
"""

from __future__ import annotations

import ast
import gc
import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import TypeAlias

from torch.distributions import Distribution

from farflung.frontends.torch.checks.data_dependence import DataCheck, data_check

__all__ = ["data_asserts"]

_Function: TypeAlias = tuple[str, str, int]


@contextmanager
def data_asserts() -> Iterator[Callable[[BaseException], bool]]:
    """Yield a function that takes the error of a trace and returns whether a new trace may get further.

    It does if the error comes from a statement that only checks data (see ``data_check``). The function with that statement
    then goes without it and without its ``assert`` statements. Distributions of PyTorch do not check their parameters. Replaces
    code of functions for the whole process: hold ``PATCHES``.
    """
    changed: list[tuple[FunctionType, CodeType]] = []
    dropped: dict[_Function, set[int]] = {}

    def leave_out(error: BaseException) -> bool:
        found = data_check(error)
        without = None if found is None else _without(found, dropped.setdefault(_named(found.code), set()))
        if found is None or without is None:
            return False
        users = [user for user in gc.get_referrers(found.code) if isinstance(user, FunctionType) and user.__code__ is found.code]
        for user in users:
            changed.append((user, found.code))
            user.__code__ = without
        return bool(users)

    checked = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield leave_out
    finally:
        Distribution.set_default_validate_args(checked)
        for function, code in reversed(changed):
            function.__code__ = code


def _named(code: CodeType) -> _Function:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _without(check: DataCheck, dropped: set[int]) -> CodeType | None:
    """The function compiled as ``python -O`` does, without the ``if`` statements at the lines ``dropped`` and that of ``check``.

    ``None``: its source is not known, or it is compiled so already.
    """
    code = check.code
    dropped.add(check.line)
    try:
        tree = _Dropping(dropped).visit(ast.parse("".join(linecache.getlines(code.co_filename))))
        whole = compile(tree, code.co_filename, "exec", dont_inherit=True, optimize=1)
    except SyntaxError:
        return None
    without = next((each for each in _codes(whole) if _named(each) == _named(code)), None)
    return without if without is not None and without.co_freevars == code.co_freevars and without != code else None


class _Dropping(ast.NodeTransformer):
    """Puts ``pass`` in the place of the ``if`` statements that start at the given lines."""

    def __init__(self, lines: set[int]) -> None:
        self._lines = lines

    def visit_If(self, node: ast.If) -> ast.AST:
        """``pass``, or the statement with what is inside it."""
        return ast.copy_location(ast.Pass(), node) if node.lineno in self._lines else self.generic_visit(node)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
