"""The accelerators that this PyTorch can use: how many, what they are called, how much memory they have.

What PyTorch says comes through a ``Probe``, so that every case can be tried on a machine without an accelerator.
"""

from __future__ import annotations

from typing import Any, Protocol

import psutil
import torch

from farflung.engines.devices import DEVICE_KINDS, ComputeDevice, core_count, cpu_model
from farflung.errors import InputError

__all__ = ["Probe", "TorchProbe", "compute_devices", "default_generator", "device_memory", "limit_memory", "synchronize"]


class Probe(Protocol):
    """What is asked about a machine."""

    def accelerator(self) -> str:
        """Return the kind of its accelerators, e.g. ``cuda`` ("": it has none that PyTorch can use)."""

    def count(self) -> int:
        """Return how many there are."""

    def model(self, index: int) -> str:
        """Return what the maker calls one."""

    def memory(self, index: int) -> int:
        """Return the bytes that one has (0: not known)."""


class TorchProbe:
    """Asks PyTorch (one build of it serves one kind of accelerator)."""

    def accelerator(self) -> str:
        """See ``Probe``."""
        if not torch.accelerator.is_available():
            return ""
        found = torch.accelerator.current_accelerator()
        return "" if found is None else found.type

    def count(self) -> int:
        """See ``Probe``."""
        return torch.accelerator.device_count()

    def model(self, index: int) -> str:
        """See ``Probe``."""
        name = getattr(torch.get_device_module(self.accelerator()), "get_device_name", None)
        return "Apple GPU" if name is None else str(name(index))

    def memory(self, index: int) -> int:
        """See ``Probe``."""
        return device_memory(torch.device(self.accelerator(), index))[1]


def compute_devices(probe: Probe) -> tuple[ComputeDevice, ...]:
    """Return the accelerators of this machine, and its CPU as the last device.

    An accelerator that does not answer is left out, as is one of a kind that the engine does not know.
    """
    cpu = ComputeDevice(name="cpu", model=cpu_model(), memory=psutil.virtual_memory().total, cores=core_count())
    kind = probe.accelerator()
    found = []
    for index in range(probe.count() if kind in DEVICE_KINDS else 0):
        name = kind if kind == "mps" else f"{kind}:{index}"  # there is one of Apple's
        try:
            found.append(ComputeDevice(name=name, model=probe.model(index), memory=probe.memory(index)))
        except RuntimeError:  # what PyTorch raises for a device in trouble: the others can still be used
            continue
    return (*found, cpu)


def device_memory(place: torch.device) -> tuple[int, int]:
    """Return the free and the total bytes of a device (a CPU: of the machine)."""
    if place.type == "mps":
        total = int(torch.mps.recommended_max_memory())
        return max(total - int(torch.mps.driver_allocated_memory()), 0), total
    if place.type == "cpu":
        memory = psutil.virtual_memory()
        return memory.available, memory.total
    free, total = torch.get_device_module(place).mem_get_info(place)
    return int(free), int(total)


def limit_memory(place: torch.device, nbytes: int | None) -> None:
    """Let PyTorch's allocator take at most ``nbytes`` of a CUDA device in this process (``None``: all).

    Several workers can share a GPU. Without a limit, one of them could take the memory that another one offers.
    """
    if place.type == "cuda":
        share = 1.0 if nbytes is None else min(nbytes / device_memory(place)[1], 1.0)
        torch.cuda.set_per_process_memory_fraction(share, place)


def synchronize(place: torch.device) -> None:
    """Wait until the device has done what was asked of it."""
    if place.type == "mps":
        torch.mps.synchronize()
    elif place.type != "cpu":
        torch.get_device_module(place).synchronize(place)


def default_generator(place: torch.device) -> torch.Generator:
    """Return the generator that operators on ``place`` draw from when none is given.

    Raises:
        InputError: the engine knows no generator of such a device.
    """
    if place.type == "cpu":
        return torch.default_generator
    if place.type == "mps":
        apple: torch.Generator = torch.mps._get_default_mps_generator()
        return apple
    module: Any = torch.get_device_module(place)
    if not hasattr(module, "default_generators"):
        raise InputError(f"no generator of random numbers is known for {place.type!r}; known are {', '.join(DEVICE_KINDS)}")
    module.init()
    index: int | None = place.index
    chosen: torch.Generator = module.default_generators[index or 0]
    return chosen
