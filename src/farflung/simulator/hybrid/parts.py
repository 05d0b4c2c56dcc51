"""Servers, helpers and links of a hybrid plan, as figures; and the losses of helpers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HelpedServer", "Helper", "Hop", "Loss", "Wire"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One direction of a link: seconds of latency and for each byte. It carries one message at a time."""

    latency: float = 0.0
    per_byte: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpedServer:
    """A server of ``stage`` with the slices that are its own.

    ``device``: which computes it (empty: one of its own, called ``name``). Servers of one device compute one task at a time.
    ``forward``, ``backward``: its seconds for a slice. ``input``, ``output``: bytes of a slice's values before and after the
    stage. ``states``: bytes of the stage's trained parameters. ``room``, ``helper_room``: as of its task pool. ``update``:
    seconds at the end of a step.
    """

    name: str
    stage: int
    slices: tuple[int, ...]
    forward: float
    backward: float
    input: float = 0.0
    output: float = 0.0
    states: float = 0.0
    room: int = 1
    helper_room: int = 2
    update: float = 0.0
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Helper:
    """A helper of ``server``, ``speed`` times as fast. ``down``, ``up``: its wires from and to the server."""

    name: str
    server: str
    speed: float
    down: Wire = Wire()
    up: Wire = Wire()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """The wires between the devices of two servers of neighboring stages, forward and back."""

    source: str
    target: str
    forward: Wire = Wire()
    back: Wire = Wire()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """``helper`` is lost ``after`` seconds of a step, and back ``away`` seconds later (infinite: before the next step)."""

    helper: str
    after: float
    away: float = float("inf")
