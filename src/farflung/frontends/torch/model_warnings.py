"""Show the warnings of a model and its loss, which their code gives while it is traced, and drop those of the trace itself."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import TextIO

import torch

__all__ = ["recorded_warnings", "shown_warnings"]

_TORCH, _FARFLUNG = (f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[2]))
_STANDARD = f"{Path(os.__file__).parent}{os.sep}"
_INSTALLED = f"{_STANDARD}site-packages{os.sep}"
#: Layers and losses.
_LAYERS = f"{_TORCH}nn{os.sep}"
#: Code that a trace makes up.
_TRACED = "<eval_with_key>"
_MADE_UP = (_TRACED, "<string>")

#: Category, text, file and line of each warning, in order, once each.
_Recorded = dict[tuple[type[Warning], str, str, int], None]
_RECORDED: ContextVar[_Recorded | None] = ContextVar("recorded", default=None)


@contextmanager
def shown_warnings() -> Iterator[None]:
    """After the block, show each warning of the models that the block traced, once. The caller's warning filters apply.

    A warning of a line of PyTorch or farflung that calls a layer or the loss has the line of the user's code instead.
    """
    recorded: _Recorded = {}
    token = _RECORDED.set(recorded)
    try:
        yield
    finally:
        _RECORDED.reset(token)
    for category, text, file, line in recorded:
        warnings.warn_explicit(text, category, file, line)


@contextmanager
def recorded_warnings() -> Iterator[None]:
    """Show no warning of the block, and leave those of models to ``shown_warnings`` around the block."""
    recorded = _RECORDED.get()

    def record(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        del file, line
        frame = _outside(sys._getframe(1), (warnings.__file__,))
        if recorded is not None and _is_model(frame.f_code.co_filename):
            if filename.startswith((_TORCH, _FARFLUNG)) and not filename.startswith(_LAYERS):
                frame = _outside(frame, (_TORCH, _FARFLUNG, *_MADE_UP))
                filename, lineno = frame.f_code.co_filename, frame.f_lineno
            recorded[category, str(message), filename, lineno] = None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if recorded is None else "always")
        warnings.showwarning = record  # ``catch_warnings`` sets it back
        yield


def _is_model(file: str) -> bool:
    return file.startswith(_LAYERS) or not file.startswith((_TORCH, _FARFLUNG, _TRACED))


def _outside(frame: FrameType, files: tuple[str, ...]) -> FrameType:
    """Return the innermost frame from ``frame`` on that is in none of ``files``, nor in Python's library, if there is one."""
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*files, _STANDARD)) or (file.startswith(_INSTALLED) and not file.startswith(files)):
            return frame
        frame = frame.f_back
    return frame
