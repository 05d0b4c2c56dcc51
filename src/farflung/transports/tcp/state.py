"""What a link's state message says, read with care: numbers, and the errors that the peer's handlers raised."""

from __future__ import annotations

from typing import Any

from farflung import errors
from farflung.errors import FarflungError, WireError

__all__ = ["ERRORS_KEPT", "named_error", "read_failures", "read_number"]

#: The last errors that a state tells.
ERRORS_KEPT = 8


def read_number(value: Any, low: float, high: float) -> float:
    """The number ``value``.

    Raises:
        WireError: it is none from ``low`` to ``high``.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise WireError(f"a link's state has {value!r:.40} where a number from {low:g} to {high:g} belongs")
    return float(value)


def read_failures(value: Any) -> dict[tuple[int, int], FarflungError]:
    """Frame (lane, number) -> what its handler raised.

    Raises:
        WireError: they are malformed.
    """
    if not isinstance(value, list) or len(value) > ERRORS_KEPT:
        raise WireError("a link's state has a malformed list of errors")
    found = {}
    for entry in value:
        if not (isinstance(entry, list) and len(entry) == 4):
            raise WireError("a link's state has a malformed error")
        lane, number, kind, text = entry
        if type(lane) is not int or type(number) is not int:
            raise WireError("a link's state has an error of no frame")
        found[lane, number] = named_error([kind, text])
    return found


def named_error(value: Any) -> FarflungError:
    """The error that a peer names, with its text.

    Raises:
        WireError: it names none.
    """
    if not (isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)):
        raise WireError("a peer's error must be a name and a text")
    kind, text = value
    made: type[FarflungError] = getattr(errors, kind) if kind in errors.__all__ else FarflungError
    return made(text)
