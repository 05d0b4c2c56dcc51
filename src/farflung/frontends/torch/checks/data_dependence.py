"""Refuse a forward whose control flow or shapes depend on the values of tensors, and name the line of the user's code.

A graph is traced once, with tensors that have shapes but no values. An operator that gives a Python number (``item``) or a shape
that the values decide (``nonzero``) can therefore not be traced. ``torch.export`` would go on with symbols and fail later, with
a dump of its graph and without a line. Here such an operator fails at once, where it is called.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, TracebackType
from unittest.mock import patch

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from farflung.frontends.torch.patches import replaced_here

__all__ = [
    "DataCheck",
    "called_from",
    "data_check",
    "data_dependence",
    "function_at",
    "is_between",
    "line_of",
    "no_symbols",
    "user_line",
]

#: Code in these folders stands between the lines of a model and the operators that they call.
_BETWEEN = tuple(
    f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(np.__file__).parent, Path(__file__).parents[3])
)
_LIBRARIES = tuple({sysconfig.get_paths()[key] for key in ("purelib", "platlib", "stdlib")})
_LONGEST = 100
_ERRORS = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")

_SCALAR = "keep the value a tensor and compute with it (no .item(), .tolist(), .numpy(), int() or float(); torch.gather to index)"
_BRANCH = "use torch.where(condition, a, b) to choose between values, or remove the check"
_LAYERDROP = (
    "set layerdrop=0 (or encoder_layerdrop=0 and decoder_layerdrop=0) in the configuration: "
    "a graph has the same layers in each step"
)
_EXPERTS = (
    'call set_experts_implementation("grouped_mm") of the model; where that has no effect (Switch, NLLB-MoE, DBRX), use another '
    "mixture of experts, such as Mixtral"
)
_LOOP = "repeat a fixed number of times, with torch.where(done, x, new) in the body"
_SHAPE = "keep shapes fixed: torch.where(mask, x, 0) in place of x[mask], or torch.topk with a fixed capacity"


@contextmanager
def no_symbols() -> Iterator[None]:
    """While it lasts, an operator whose result is a number or shape that data decide raises instead of giving a symbol.

    ``torch._check_tensor_all`` only checks the data and computes nothing, so a graph goes without it. Replaces properties of
    ``ShapeEnv`` for the whole process: hold ``PATCHES``.
    """
    refused = property(lambda self: False)
    with (
        patch.object(ShapeEnv, "allow_scalar_outputs", refused),
        patch.object(ShapeEnv, "allow_dynamic_output_shape_ops", refused),
        replaced_here(torch, "_check_tensor_all", lambda *_: None),
    ):
        yield


def data_dependence(error: BaseException) -> str | None:
    """What to report of an export that failed with ``error``, if the reason is that the forward depends on data."""
    chain = _chain(error)
    if not chain:
        return None
    lines = (user_line(each.__traceback__) for each in chain)
    line = next((each for each in lines if each is not None), ("the forward", ""))
    return _report(line, shape=type(chain[0]).__name__ == "DynamicOutputShapeException")


def _chain(error: BaseException) -> list[BaseException]:
    """The exception of torch that says that data are needed, then those that it caused up to ``error``; empty: there is none."""
    chain: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and seen not in chain:
        chain.insert(0, seen)
        if type(seen).__name__ in _ERRORS or (isinstance(seen, RuntimeError) and ".numpy() is not supported" in str(seen)):
            return chain
        seen = seen.__cause__ or seen.__context__
    return []


@dataclass(frozen=True, slots=True)
class DataCheck:
    """A statement that only checks data: the ``code`` of its function, and the ``line`` where the statement starts."""

    code: CodeType
    line: int


def data_check(error: BaseException) -> DataCheck | None:
    """The check with which an export failed because it depends on data; None: no such.

    A check is an ``assert`` statement, or an ``if`` statement that does nothing but raise an error.
    """
    for each in _chain(error):
        frames = [(frame.f_code, number) for frame, number in traceback.walk_tb(each.__traceback__)]
        outside = [place for place in frames if not is_between(place[0].co_filename)]
        if outside:
            code, number = outside[-1]
            line = _check_at(code.co_filename, number)
            return None if line is None else DataCheck(code, line)
    return None


def _check_at(file: str, number: int) -> int | None:
    """The first line of the check whose condition is at line ``number``; None: there is no check."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None
    caught = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.Try) and node.handlers for inner in _inside(node.body)}
    for node in ast.walk(tree):
        if id(node) in caught:
            continue  # an error there may decide what is computed
        if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and _only_raises(node)):
            condition = node if isinstance(node, ast.Assert) else node.test
            if condition.lineno <= number <= (condition.end_lineno or condition.lineno):
                return node.lineno
    return None


def _inside(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """``statements`` and what they contain, but for functions and classes that they define."""
    for node in statements:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            yield from _inside(ast.iter_child_nodes(node))


def _only_raises(statement: ast.If) -> bool:
    """Whether the statement, if it does not raise, leaves nothing behind."""
    assigns = any(isinstance(node, ast.NamedExpr) for node in ast.walk(statement.test))
    return not assigns and not statement.orelse and len(statement.body) == 1 and isinstance(statement.body[0], ast.Raise)


def is_between(file: str) -> bool:
    """Whether ``file`` is torch's, NumPy's, farflung's, or made up by one of them."""
    return file.startswith((*_BETWEEN, "<"))


def user_line(trace: TracebackType | None) -> tuple[str, str] | None:
    """Where in a model's code ``trace`` ends, as ``("model.py:17", "if h.sum() > 0:")``; None: it has no part in ``trace``.

    In code of a library, the place is followed by that of the user's own line that called it.
    """
    frames = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(trace)]
    outside = [frame for frame in frames if not is_between(frame[0])]
    if not outside:
        return None
    own = [frame for frame in outside if not frame[0].startswith(_LIBRARIES)]
    place, text = line_of(*outside[-1])
    if own and own[-1] != outside[-1]:
        place += f" (called from {line_of(*own[-1])[0]})"
    return place, text


def called_from() -> str:
    """The caller's own line that is running now, such as a call of ``train``, as ``"script.py:17"`` (empty: there is none)."""
    for frame, number in traceback.walk_stack(None):
        file = frame.f_code.co_filename
        if file.endswith(".py") and not is_between(file) and not file.startswith(_LIBRARIES):
            return line_of(file, number)[0]
    return ""


def line_of(file: str, number: int) -> tuple[str, str]:
    """``("model.py:17", its text)``."""
    text = " ".join(linecache.getline(file, number).split("#")[0].split())
    return f"{Path(file).name}:{number}", text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def function_at(file: str, number: int) -> str:
    """The name of the innermost function that has the line ``number`` (empty: none has)."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= number <= (node.end_lineno or 0)
    ]
    return max(found, key=lambda node: node.lineno).name if found else ""


def _report(line: tuple[str, str], *, shape: bool) -> str:
    place, text = line
    said = f"{place}: {text} depends on tensor data" if text else f"{place} depends on tensor data"
    if place.startswith("modeling_") and re.search(r"expert", text):  # of transformers: the user cannot change the line
        remedy = _EXPERTS
    elif shape:
        remedy = _SHAPE
    elif re.search(r"layer_?drop|skip_the_layer", text):
        remedy = _LAYERDROP
    elif re.match(r"(if|elif|assert)\b", text) or " if " in text:
        remedy = _BRANCH
    elif re.match(r"(for|while)\b", text):
        remedy = _LOOP
    else:
        remedy = _SCALAR
    return f"{said}, and a graph has no values: {remedy}"
