"""Which device a worker computes on, and what a short warm-up measures on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

import psutil

from farflung.engines import AUTO, ComputeDevice, DeviceReport, Engine, choose_device
from farflung.engines.isolation import Opened, open_engine, open_site
from farflung.engines.probe import probe_engine
from farflung.engines.selection import open_selected
from farflung.engines.state_file import DiskSpace, disk_rate
from farflung.errors import InputError
from farflung.extras import ENGINE_LIBRARIES
from farflung.messages.versions import own_versions
from farflung.transports.addresses import host_id
from farflung.units import Bytes
from farflung.worker.options import WorkerOptions

__all__ = ["MeasuredDevice", "measure_device", "offered_disk", "open_device"]

#: The share of the free memory that training may use by default.
_MEMORY_SHARE = 0.8
_REMEDY = "change it with farflung limit --memory"


class MeasuredDevice:
    """The device that computes, and the offer that it makes to the broker. Outlives the worker's sessions.

    The session's thread and the thread of a measurement call; a measurement replaces the offer as a whole.
    """

    def __init__(self, opened: Opened, options: WorkerOptions, log: Callable[[str], None]) -> None:
        """Measure the device of ``options``.

        Raises:
            InputError: there is no such device, or it does not work.
        """
        engine, peak, memory = opened.engine, options.peak, options.memory
        chosen, report = measure_device(engine, AUTO if options.devices else options.device, peak, log)
        if memory is None:
            free = psutil.virtual_memory().available if chosen.kind == "cpu" else report.free_bytes
            memory = _MEMORY_SHARE * free
        self.engine, self.name, self._peak = engine, chosen.name, peak
        installed = psutil.virtual_memory().total if chosen.kind == "cpu" else chosen.memory
        #: All memory of the device, in bytes (infinite: not known).
        self._installed = float(installed) or math.inf
        if memory > self._installed:
            log(f"the limit of {Bytes(memory).written(3)} is more than all memory of {chosen.name}; {_REMEDY}")
        #: What ``Engine.share`` compares with.
        self._reference = report.reference_seconds
        support = engine.support(chosen.name)
        log(f"engine: {engine.version()} ({', '.join(support.precisions)})")
        self._offer: Mapping[str, Any] = MappingProxyType(
            {
                "memory": self.at_most(memory),
                **({"installed": installed} if chosen.kind == "cpu" else {}),
                "kind": chosen.kind,
                "description": report.name,
                "host": host_id(),
                "processors": list(report.processors),
                "versions": own_versions(engine.version()),
                "operators": tuple(sorted(support.operators)),
                "precisions": support.precisions,
                "probe": probe_engine(engine, chosen.name),
                "isolation": opened.level,
                **_ranks(options, report),
                **_disk(options, log),
                **_speed(report),
            }
        )

    @property
    def offer(self) -> Mapping[str, Any]:
        """What the broker plans with."""
        return self._offer

    def at_most(self, memory: float) -> float:
        """Return ``memory`` in bytes, or all memory of the device if that is less: planners must not count on more."""
        return min(memory, self._installed)

    @property
    def speed(self) -> dict[str, Any]:
        """The newest measured speed."""
        return {key: self._offer[key] for key in ("speed", "factor", "overhead", "convolution")}

    def measure_again(self, threads: int, *, together: bool) -> dict[str, Any]:
        """Measure the speed on ``threads`` threads, or (``together``) the share of it while all workers of this machine compute.

        Raises:
            InputError: the device does not work.
        """
        self.engine.set_threads(threads)
        if together and self._reference:
            return {**self.speed, "share": self.engine.share(self.name, self._reference)}
        report = self.engine.measure(self.name, self._peak)
        self._reference = report.reference_seconds
        self._offer = MappingProxyType({**self._offer, **_speed(report)})
        return _speed(report)


def open_device(options: WorkerOptions, log: Callable[[str], None], phase: Callable[[str], None]) -> MeasuredDevice:
    """Load the engine and measure the device; ``phase`` is called with each of the two.

    Raises:
        InputError: no engine is installed, there is no such device, or isolation is required and can't be had.
    """

    def opening(name: str) -> Opened:
        library = ENGINE_LIBRARIES.get(name)
        phase(f"loading {f'the engine {name}' if library is None else library.title}")
        return open_engine(options.isolation, log, name=name, disk=int(options.disk))

    if options.devices:
        phase("starting the ranks of the site")
        opened = open_site(options.devices, options.engine, options.isolation, log)
    else:
        opened = open_selected(options.engine, options.device, opening)
    with ExitStack() as undo:
        undo.callback(opened.engine.end)
        phase("measuring the speed of the device")
        device = MeasuredDevice(opened, options, log)
        undo.pop_all()
    return device


def measure_device(
    engine: Engine, asked: str, peak: float | None, log: Callable[[str], None]
) -> tuple[ComputeDevice, DeviceReport]:
    """Measure the device that ``asked`` means (see ``choose_device``), and log which one it is.

    ``auto`` falls back to the CPU where the accelerator does not work, e.g. one that is too old for this PyTorch.

    Raises:
        InputError: there is no such device, or it does not work.
    """
    found = engine.devices()
    chosen = choose_device(asked, found)
    try:
        report = _measure(engine, chosen, peak)
    except InputError as error:
        if asked != AUTO or chosen.kind == "cpu":
            raise
        log(str(error))
        chosen = found[-1]
        report = _measure(engine, chosen, peak)
    log(f"device: {chosen}")
    return chosen, report


def _measure(engine: Engine, chosen: ComputeDevice, peak: float | None) -> DeviceReport:
    try:
        return engine.measure(chosen.name, peak)
    except (RuntimeError, AssertionError, ValueError) as error:  # what PyTorch raises for a device that does not work
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"device {chosen.name!r} can't be used: {line}; try --device cpu") from None


def _ranks(options: WorkerOptions, report: DeviceReport) -> dict[str, float]:
    """Return the ranks of a site and how fast they exchange (empty: it is no site)."""
    if not options.devices:
        return {}
    return {"ranks": len(options.devices), "rank_latency": report.rank_latency, "rank_rate": report.rank_rate}


def _speed(report: DeviceReport) -> dict[str, float]:
    return {
        "speed": report.flops_per_second,
        "factor": report.speed_factor,
        "overhead": report.launch_seconds,
        "convolution": report.convolution,
    }


def offered_disk(options: WorkerOptions) -> DiskSpace | None:
    """Return the disk space that the owner offers for optimizer states (None: none)."""
    return DiskSpace(options.disk_folder, int(options.disk)) if options.disk else None


def _disk(options: WorkerOptions, log: Callable[[str], None]) -> dict[str, float]:
    """Return the offered disk space and its measured rate, if there is any."""
    space = offered_disk(options)
    if space is None:
        return {}
    rate = disk_rate(space)
    log(f"disk: {Bytes(space.nbytes).written(3)} in {space.folder}, {Bytes(rate).written(3)}/s")
    return {"offload": space.nbytes, "offload_rate": rate}
