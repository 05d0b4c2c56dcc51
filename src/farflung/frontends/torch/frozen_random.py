"""Refuse a forward that draws from Python's or NumPy's random numbers: the trace would freeze what it drew.

The states of the generators are compared before and after a trace, which costs next to nothing. Only if one has changed, the
forward is traced once more, line by line, to name the line that drew.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
from torch import nn

from farflung.errors import CaptureError
from farflung.frontends.torch.data_dependence import is_between, line_of

__all__ = ["refuse_frozen_random"]

T = TypeVar("T")

_Place = tuple[str, int]
#: Its functions draw; the line that calls them is the one to name.
_RANDOM = str(Path(random.__file__))


def refuse_frozen_random(module: nn.Module, trace: Callable[[], T]) -> T:
    """What ``trace`` (of ``module``) returns.

    Raises:
        CaptureError: while it ran, the forward drew from Python's or NumPy's random numbers.
    """
    before = _states(module)
    with _seeded_only():
        result = trace()
    if _states(module) == before:
        return result
    finder = _Finder(module)
    result = finder.run(trace)
    if finder.found is None:  # another thread drew meanwhile
        return result
    raise CaptureError(_report(finder.found))


@contextmanager
def _seeded_only() -> Iterator[None]:
    """Refuse generators that the forward makes without a seed. Replaces a function of NumPy: hold ``exporting.PATCHES``."""
    make = np.random.default_rng

    def seeded(seed: Any = None) -> np.random.Generator:
        caller = sys._getframe(1)
        if seed is None and not is_between(caller.f_code.co_filename):
            raise CaptureError(_report((caller.f_code.co_filename, caller.f_lineno)))
        return make(seed)

    with patch.object(np.random, "default_rng", seeded):
        yield


def _report(line: _Place) -> str:
    place, text = line_of(*line)
    return (
        f"{place}: {text} draws random numbers of Python or NumPy, and every step would use the same ones: "
        "use torch (torch.rand, torch.randint), whose numbers are drawn anew in each micro-batch"
    )


def _generators(module: nn.Module) -> Iterator[Any]:
    """Generators that parts of ``module`` have as attributes."""
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, (random.Random, np.random.Generator, np.random.RandomState)):
                yield value


def _states(module: nn.Module) -> list[str]:
    found = [repr(random.getstate()), repr(_plain(np.random.get_state(legacy=False)))]
    for value in _generators(module):
        if isinstance(value, random.Random):
            state: Any = value.getstate()
        elif isinstance(value, np.random.RandomState):
            state = value.get_state(legacy=False)
        else:
            state = value.bit_generator.state
        found.append(repr(_plain(state)))
    return found


def _plain(state: Any) -> Any:
    """``state`` with the bytes of its arrays (their text leaves numbers out)."""
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state


class _Finder:
    """Follows the lines of code outside torch in this thread; ``found``: the first one during which a state changed."""

    def __init__(self, module: nn.Module) -> None:
        self.found: _Place | None = None
        self._module = module
        self._last: _Place | None = None
        self._state: list[str] = []

    def run(self, trace: Callable[[], T]) -> T:
        """What ``trace`` returns."""
        self._state = _states(self._module)
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return trace()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        file = frame.f_code.co_filename
        if self.found is not None or file == _RANDOM or is_between(file):
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if self.found is None:
            if self._last is not None:
                state = _states(self._module)
                if state != self._state:
                    self.found = self._last
            self._last = frame.f_code.co_filename, frame.f_lineno
        return self._line
