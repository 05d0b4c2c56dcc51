"""The engine of a worker (``farflung join --engine``): the named one, or the installed one that reaches the fastest device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from farflung.engines.devices import AUTO, choose_device
from farflung.engines.isolation import Opened
from farflung.engines.registry import ENGINES, get_engine
from farflung.errors import InputError
from farflung.extras import ENGINE_LIBRARIES, installed_engines

__all__ = ["open_selected"]


def open_selected(asked: str, device: str, opening: Callable[[str], Opened]) -> Opened:
    """Return the engine that ``asked`` means, which has the device that ``device`` means. ``opening`` opens an engine by name.

    ``auto`` takes the first installed engine with such a device. With the device ``auto``, an engine with an accelerator takes
    precedence over an engine that has only a CPU.

    Raises:
        InputError: no engine is installed, the named one is unknown, or it has no such device.
    """
    if asked not in (AUTO, *ENGINES):
        get_engine(asked)  # it raises here, and not in the process that computes
    if asked != AUTO:
        return _opened(asked, device, opening)[0]
    refusal: InputError | None = None
    with ExitStack() as undo:
        fallback: Opened | None = None
        for name in installed_engines():
            if fallback is not None and not ENGINE_LIBRARIES[name].may_accelerate:
                continue
            try:
                opened, kind = _opened(name, device, opening)
            except InputError as error:
                refusal = refusal or error
                continue
            if kind != "cpu" or device != AUTO:
                return opened
            if fallback is None:
                fallback = opened
                undo.callback(opened.engine.end)
            else:
                opened.engine.end()
        if fallback is None:
            assert refusal is not None
            raise refusal
        undo.pop_all()
        return fallback


def _opened(name: str, device: str, opening: Callable[[str], Opened]) -> tuple[Opened, str]:
    """Return an engine and the kind of its device; an engine without such a device is closed."""
    with ExitStack() as undo:
        opened = opening(name)
        undo.callback(opened.engine.end)
        kind = choose_device(device, opened.engine.devices()).kind
        undo.pop_all()
    return opened, kind
