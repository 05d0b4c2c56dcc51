"""Leave out ``assert`` statements that check data: a graph has no values to check, and the statement computes nothing.

``python -O`` leaves out all of them. Here only functions whose check stopped a trace go without, and only while it lasts.
"""

from __future__ import annotations

import gc
import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType

from farflung.frontends.torch.checks.data_dependence import data_check

__all__ = ["data_asserts"]


@contextmanager
def data_asserts() -> Iterator[Callable[[BaseException], bool]]:
    """Yield a function that takes the error of a trace and returns whether a new trace may get further.

    It does if the error comes from an ``assert`` statement that needs data. The function with that statement then goes without
    its ``assert`` statements. Replaces code of functions for the whole process: hold ``exporting.PATCHES``.
    """
    changed: list[tuple[FunctionType, CodeType]] = []

    def leave_out(error: BaseException) -> bool:
        found = data_check(error)
        without = None if found is None else _without_asserts(found[0])
        if found is None or without is None:
            return False
        users = [user for user in gc.get_referrers(found[0]) if isinstance(user, FunctionType) and user.__code__ is found[0]]
        for user in users:
            changed.append((user, found[0]))
            user.__code__ = without
        return bool(users)

    try:
        yield leave_out
    finally:
        for function, code in changed:
            function.__code__ = code


def _without_asserts(code: CodeType) -> CodeType | None:
    """The same function compiled as ``python -O`` does; None: its source is not known, or it is compiled so already."""
    try:
        whole = compile("".join(linecache.getlines(code.co_filename)), code.co_filename, "exec", dont_inherit=True, optimize=1)
    except SyntaxError:
        return None
    found = (each for each in _codes(whole) if (each.co_qualname, each.co_firstlineno) == (code.co_qualname, code.co_firstlineno))
    without = next(found, None)
    return without if without is not None and without.co_freevars == code.co_freevars and without != code else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
