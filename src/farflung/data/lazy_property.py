"""A property that is computed at its first use, without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["lazy_property"]

Value = TypeVar("Value")


class lazy_property(Generic[Value]):  # noqa: N801 - a decorator, like ``functools.cached_property``
    """As ``functools.cached_property``. In Python 3.11 that one holds a lock for all objects of a class while it computes.

    A read of one run that never returns would then block the data of all later runs of the process.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> Value:
        value = self._compute(instance)
        instance.__dict__[self._name] = value  # found before this descriptor from now on
        return value
