"""Refuse a forward that draws from Python's or NumPy's random numbers: the trace would freeze what it drew.

The states of the generators are compared before and after a trace, which costs next to nothing. Only if one has changed, the
forward is traced once more, line by line, to name the line that drew.

A generator that the forward makes from a fixed seed is allowed: it gives the same numbers in each step of any loop. These are not
detected: generators of another file's global variables, and ``RandomState()`` or a bit generator that the forward makes without
a seed.
"""

from __future__ import annotations

import inspect
import os
import random
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType, ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from farflung.errors import CaptureError
from farflung.frontends.torch.checks.data_dependence import function_at, is_between, line_of
from farflung.frontends.torch.patches import replaced_here

__all__ = ["refuse_frozen_random"]

T = TypeVar("T")

_Place = tuple[str, int]
_PATHS = sysconfig.get_paths()
_STANDARD = _PATHS["stdlib"] + os.sep
_INSTALLED = tuple(_PATHS[key] + os.sep for key in ("purelib", "platlib"))
#: Seconds without a draw after which a draw is that of this thread: a thread that draws all the time does so within them.
_LULL = 0.01
#: Levels of containers and objects that are searched for generators.
_DEPTH = 4


def refuse_frozen_random(module: nn.Module, trace: Callable[[], T]) -> T:
    """What ``trace`` (of ``module``) returns.

    Raises:
        CaptureError: while it ran, the forward drew from Python's or NumPy's random numbers.
    """
    generators = _generators(module)
    before = _states(generators)
    with _seeded_only():
        result = trace()
    if _states(generators) == before:
        return result
    found = []
    for _ in range(2):  # a line during which another thread drew is another one the next time
        finder = _Finder(generators)
        result = finder.run(trace)
        if finder.found is None:
            return result
        found.append(finder.found)
    if found[0] != found[1]:
        return result
    raise CaptureError(_report(found[0]))


@contextmanager
def _seeded_only() -> Iterator[None]:
    """Refuse generators that the forward makes without a seed, and numbers of the operating system.

    Replaces functions of Python and NumPy for this thread; above each of them is one more frame, that of ``replaced_here``.
    """
    make, born, system = np.random.default_rng, random.Random.__init__, random.SystemRandom.getrandbits

    def seeded(seed: Any = None) -> np.random.Generator:
        if seed is None:
            _refuse_caller(sys._getframe(2))
        return make(seed)

    def born_seeded(self: random.Random, x: Any = None) -> None:
        if x is None:
            _refuse_caller(sys._getframe(2))
        born(self, x)

    def bits(self: random.SystemRandom, k: int) -> int:
        _refuse_caller(sys._getframe(2))
        return system(self, k)

    def fraction(self: random.SystemRandom) -> float:
        _refuse_caller(sys._getframe(2))
        return drawn(self)

    drawn = random.SystemRandom.random
    with (
        replaced_here(np.random, "default_rng", seeded),
        replaced_here(random.Random, "__init__", born_seeded),
        replaced_here(random.SystemRandom, "getrandbits", bits),
        replaced_here(random.SystemRandom, "random", fraction),
    ):
        yield


def _refuse_caller(frame: FrameType | None) -> None:
    """Raise if the code that called a function of Python's library is the model's, and not PyTorch's."""
    place = _place(frame, above=_is_standard)
    if place is not None and not is_between(place[0]):
        raise CaptureError(_report(place))


def _is_standard(file: str) -> bool:
    return file.startswith(_STANDARD) and not file.startswith(_INSTALLED)


def _is_skipped(file: str) -> bool:
    return is_between(file) or _is_standard(file)


def _place(frame: FrameType | None, above: Callable[[str], bool]) -> _Place | None:
    """The line of the innermost frame whose file is not one that ``above`` accepts."""
    while frame is not None and above(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _report(line: _Place) -> str:
    place, text = line_of(*line)
    remedy = "use torch (torch.rand, torch.randint), whose numbers are drawn anew in each micro-batch"
    if function_at(*line) == "_compute_mask_indices":  # SpecAugment of transformers: the user cannot change the line
        remedy = "set mask_time_prob=0 in the configuration"
    return f"{place}: {text} draws random numbers of Python or NumPy, and every step would use the same ones: {remedy}"


def _generators(module: nn.Module) -> list[Any]:
    """The generators that a forward of ``module`` can reach: attributes of its parts, variables of their files and closures."""
    found: dict[int, Any] = {}
    seen: set[int] = set()

    def look(value: Any, depth: int) -> None:
        if isinstance(value, (random.Random, np.random.Generator, np.random.RandomState)):
            if not isinstance(value, random.SystemRandom):  # has no state
                found[id(value)] = value
        elif depth and id(value) not in seen:
            seen.add(id(value))
            for item in _items(value):
                look(item, depth - 1)

    for part in module.modules():
        look(vars(part), _DEPTH)
    for kind in {kind for part in module.modules() for kind in type(part).__mro__}:
        for function in vars(kind).values():
            if isinstance(function, FunctionType) and not is_between(function.__code__.co_filename):
                look(function.__globals__, 3)
                look(inspect.getclosurevars(function).nonlocals, 3)
    return list(found.values())


def _items(value: Any) -> list[Any]:
    """What ``value`` holds, if it is a container or an object with attributes."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple, set)):
        return list(value)
    if isinstance(value, (type, ModuleType, FunctionType, torch.Tensor)):
        return []
    return list(getattr(value, "__dict__", {}).values())


def _states(generators: list[Any]) -> list[str]:
    found = [repr(random.getstate()), repr(_plain(np.random.get_state(legacy=False)))]
    for value in generators:
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

    def __init__(self, generators: list[Any]) -> None:
        self.found: _Place | None = None
        self._generators = generators
        self._last: _Place | None = None
        self._state: list[str] = []

    def run(self, trace: Callable[[], T]) -> T:
        """What ``trace`` returns."""
        self._state = _states(self._generators)
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return trace()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if self.found is not None or _is_skipped(frame.f_code.co_filename):
            return None
        self._check()  # the line that calls may have drawn an argument
        return self._line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        self._check()
        # After a return, the rest of the line that called is run, without an event of its own.
        self._last = _place(frame.f_back if event == "return" else frame, above=_is_skipped)
        return self._line

    def _check(self) -> None:
        if self.found is not None or self._last is None or (now := _states(self._generators)) == self._state:
            return
        threading.Event().wait(_LULL)
        self._state = _states(self._generators)
        if self._state == now:  # else another thread is drawing
            self.found = self._last
