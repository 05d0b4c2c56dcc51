"""The strategies by name: every table ``STRATEGIES`` in ``farflung.sync.strategies``, and plug-ins.

A new file in that folder is found by itself; nothing lists the files.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

from farflung.errors import InputError
from farflung.known_names import known_names
from farflung.registry import Registry
from farflung.sync import strategies
from farflung.sync.base import Strategy

__all__ = ["STRATEGIES", "get_strategy"]

Factory = Callable[..., Strategy]

#: Strategies by name; a member is a callable that takes settings, all with defaults.
STRATEGIES: Registry[Factory] = Registry("sync strategy", "strategies")


def _add(found: Mapping[str, Factory]) -> None:
    for name in found:
        STRATEGIES.add(name, partial(found.__getitem__, name))


for _module in pkgutil.iter_modules(strategies.__path__):
    _add(import_module(f"{strategies.__name__}.{_module.name}").STRATEGIES)


def get_strategy(name: str, /, **settings: object) -> Strategy:
    """The strategy called ``name`` with ``settings``, e.g. ``get_strategy("diloco", sync_every=100)``.

    Raises:
        InputError: no strategy has that name, or it has no such setting (the text lists the known ones), or a value is wrong.
    """
    if name not in STRATEGIES:  # a job may also sum exactly, without a strategy
        raise InputError(f"unknown sync strategy {name!r}: {known_names(name, sorted(('exact', *STRATEGIES)))}")
    factory = STRATEGIES.get(name)
    fixed = frozenset(factory.keywords) if isinstance(factory, partial) else frozenset[str]()  # what the name decides
    known = [key for key in inspect.signature(factory).parameters if key not in fixed]
    unknown = [key for key in settings if key not in known]
    if unknown:
        raise InputError(f"strategy {name!r} has no setting {unknown[0]!r}: {known_names(unknown[0], known)}")
    return factory(**settings)
