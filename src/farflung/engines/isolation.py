"""The choice of a worker's owner: whether jobs compute in processes of their own, and how much these must give up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack

from farflung.engines.base import Engine
from farflung.engines.isolated import PROTECTIONS, IsolatedEngine, Zygote
from farflung.engines.registry import get_engine
from farflung.engines.site import SiteEngine, check_devices
from farflung.errors import FarflungError, InputError

__all__ = ["ISOLATION", "Opened", "describe", "missing", "open_engine", "open_site"]

#: ``auto``: a process of its own with all protections that this machine has; ``required``: all of them, or no worker;
#: ``off``: the worker's own process.
ISOLATION = ("auto", "required", "off")
_TAKEN = {
    "network": "network",
    "files": "files",
    "processes": "other processes",
    "privileges": "privileges",
    "memory": "memory beyond its limit",
}


class Opened:
    """An engine, and how it is isolated: ``holds`` are the protections (``None``: jobs compute in the worker's own process)."""

    def __init__(self, engine: Engine, holds: tuple[str, ...] | None) -> None:
        self.engine, self.holds = engine, holds

    @property
    def level(self) -> str:
        """``full``, ``partial`` or ``off``."""
        return "off" if self.holds is None else "partial" if missing(self.holds) else "full"


def missing(holds: Collection[str]) -> tuple[str, ...]:
    """The protections that are not among ``holds``."""
    return tuple(name for name in PROTECTIONS if name not in holds)


def describe(holds: Collection[str] | None) -> str:
    """One line for the owner of the machine."""
    if holds is None:
        return "isolation: off; a job's operators run in the worker's own process, with all that it may read and write"
    lacks = missing(holds)
    if not lacks:
        return "isolation: full; each job computes in a process without network, files, privileges or other processes"
    return f"isolation: partial; each job computes in a process of its own, but this system can't take {_list(lacks)} from it"


def _list(names: Collection[str]) -> str:
    return ", ".join(_TAKEN[name] for name in names)


def open_engine(
    isolation: str, say: Callable[[str], None], *, memory: int = 1 << 30, name: str = "torch", disk: int = 0
) -> Opened:
    """The engine ``name`` as ``isolation`` (of ``ISOLATION``) says; ``say`` gets the line of ``describe``.

    ``disk``: bytes of files that the worker passes to processes that compute.

    Raises:
        InputError: the engine can't be loaded, or ``required`` protections are missing; the text names them.
    """
    if isolation not in ISOLATION:
        raise InputError(f"unknown isolation {isolation!r}: known are {', '.join(ISOLATION)}")
    opened = Opened(get_engine(name), None) if isolation == "off" else _isolated(isolation, say, memory, Zygote(name, disk))
    say(describe(opened.holds))
    return opened


def open_site(devices: Sequence[str], engine: str, isolation: str, say: Callable[[str], None]) -> Opened:
    """The engine of a site on ``devices`` (``engines.site.check_devices``); ``isolation`` and ``say`` as ``open_engine``.

    Raises:
        InputError: there is no such device, the engine or the system can't have ranks, or ``required`` protections are missing.
    """
    if engine not in ("auto", "torch"):
        raise InputError(f"--devices with --engine {engine!r:.40}: the ranks of a site compute with torch; remove one of the two")
    if isolation == "off":
        raise InputError("--devices with --isolation off: each rank is a process of its own; use --isolation auto")
    if not sys.platform.startswith("linux"):
        raise InputError(
            f"--devices on {sys.platform}: the ranks of a site need Linux; join each device as a worker with --device"
        )
    zygote = Zygote("torch")
    with ExitStack() as undo:
        undo.callback(zygote.close)
        site = SiteEngine(zygote, check_devices(devices, IsolatedEngine(zygote).devices()))
        holds = site.attempt("", len(site.ranks) << 30).holds
        lacks = missing(holds)
        if lacks and isolation == "required":
            raise InputError(f"--isolation required: this system can't take {_list(lacks)} from ranks; use --isolation auto")
        undo.pop_all()
    say(f"site of {len(site.ranks)} ranks: {', '.join(device.name for device in site.ranks)}")
    say(describe(holds))
    return Opened(site, holds)


def _isolated(isolation: str, say: Callable[[str], None], memory: int, zygote: Zygote) -> Opened:
    remedy = "use --isolation auto to take part without them"
    if not sys.platform.startswith("linux"):
        if isolation == "required":
            raise InputError(f"--isolation required: {sys.platform} has no sandbox that farflung knows; {remedy}")
        return Opened(get_engine(zygote.engine), None)
    engine = IsolatedEngine(zygote)
    try:
        holds = engine.attempt("cpu", memory).holds
    except (FarflungError, OSError) as error:
        engine.end()
        if isolation == "required":
            raise InputError(f"--isolation required: jobs can't have a process of their own: {error}; {remedy}") from None
        say(f"jobs can't have a process of their own: {error}")
        return Opened(get_engine(zygote.engine), None)
    lacks = missing(holds)
    if lacks and isolation == "required":
        engine.end()
        raise InputError(f"--isolation required: this system can't take {_list(lacks)} from a process; {remedy}")
    return Opened(engine, holds)
