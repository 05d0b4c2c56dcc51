"""What a link's state message says, read with care: numbers, and the errors that the peer's handlers raised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farflung import errors
from farflung.errors import FarflungError, WireError
from farflung.transports.tcp.halves import read_states

__all__ = ["ERRORS_KEPT", "LinkState", "named_error", "read_failures", "read_number", "read_state"]

#: The last errors that a state tells.
ERRORS_KEPT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """What a peer reports of a link.

    ``lanes``: what it received and handled. ``failures``: frame (lane, number) -> what its handler raised. ``heartbeat``: seconds
    between its states. ``wants``: the number of connections. ``time``: on its clock. ``echo``: the newest time that it received,
    and the seconds since then. ``arrived``: bytes, in any order. ``curve``: see ``LinkGoodput.told``.
    """

    lanes: Sequence[tuple[int, int]]
    failures: Mapping[tuple[int, int], FarflungError]
    heartbeat: float
    wants: int
    time: float
    echo: tuple[float, float] | None
    arrived: int
    curve: object


def read_number(value: Any, low: float, high: float) -> float:
    """The number ``value``.

    Raises:
        WireError: it is none from ``low`` to ``high``.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise WireError(f"a link's state has {value!r:.40} where a number from {low:g} to {high:g} belongs")
    return float(value)


def read_state(body: Any) -> LinkState:
    """The state that ``body`` encodes.

    Raises:
        WireError: it is malformed.
    """
    if not isinstance(body, dict):
        raise WireError("a link's state must be a map")
    lanes, failures = read_states(body.get("states")), read_failures(body.get("errors"))
    echo = body.get("echo")
    echoed: Sequence[Any] = echo if isinstance(echo, list) and len(echo) == 2 else ()
    return LinkState(
        lanes=lanes,
        failures=failures,
        heartbeat=read_number(body.get("beat"), 0.05, 60.0),
        wants=int(read_number(body.get("wants"), 1, 64)),
        time=read_number(body.get("time"), 0.0, 1e18),
        echo=(read_number(echoed[0], 0.0, 1e18), read_number(echoed[1], 0.0, 1e18)) if echoed else None,
        arrived=int(read_number(body.get("arrived"), 0, 1e18)),
        curve=body.get("curve"),
    )


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
