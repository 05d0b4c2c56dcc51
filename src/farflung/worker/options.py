"""How the owner of a machine lets it take part."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = ["WorkerOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How this machine takes part.

    ``engine``: as ``engines.selection.open_selected``. ``device``: as ``engines.choose_device``.
    ``devices``: of a site, as ``engines.site.check_devices`` (empty: it is one device).
    ``memory``: bytes that training may use (None: four fifths of what is free).
    ``listen``: where peers reach it.
    ``advertise``: the host that it tells its peers (default: the one by which it reaches the broker).
    An empty ``listen``: it can't be dialled, and dials others. ``relay``: it carries traffic between members of its broker's
    runs that can't dial each other. ``peak``: the device's FLOP/s by its datasheet (None: that of its best matrix product).
    ``reliable``: it stays; else it may go at any time, and jobs with ``plan.helpers`` give it no stage, but let it help.
    ``data``: the folder that relative data paths start from; jobs read nothing else but Python's standard library, unless
    ``any_path`` lets them read whatever this process may read. ``isolation``: as ``engines.isolation.open_engine``.
    ``region``: where the machine is, for planners and people (empty: unknown). ``disk``: bytes in
    ``disk_folder`` for optimizer states of models that do not fit into memory (0: none).
    ``only``: ``training`` or ``serving``, the only runs that its owner allows (empty: both).
    ``map_port``: ask the router of this machine to forward a port to this worker (``links.mapped_port``).
    """

    engine: str = "auto"
    device: str = "cpu"
    devices: tuple[str, ...] = ()
    memory: float | None = None
    listen: str = "0.0.0.0:0"
    advertise: str | None = None
    peak: float | None = None
    data: Path = field(default_factory=Path.cwd)
    any_path: bool = False
    isolation: str = "off"
    relay: bool = True
    reliable: bool = True
    region: str = ""
    disk: float = 0.0
    disk_folder: Path = field(default_factory=Path.cwd)
    only: Literal["", "training", "serving"] = ""
    map_port: bool = False
