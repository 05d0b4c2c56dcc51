"""The devices of one machine that can compute, and the choice among them (``--device auto``)."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farflung.errors import InputError
from farflung.units import Bytes, counted

__all__ = ["AUTO", "DEVICE_KINDS", "ComputeDevice", "choose_device", "core_count", "cpu_model"]

AUTO = "auto"
#: Kinds of devices, as PyTorch names them: NVIDIA and AMD (``cuda``), Apple (``mps``), Intel (``xpu``).
DEVICE_KINDS = ("cpu", "cuda", "mps", "xpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeDevice:
    """A device by the name that ``--device`` takes, e.g. ``cuda:0``.

    ``model``: what its maker calls it. ``memory``: all of its bytes (0: not known). ``cores``: those of a CPU that this process
    may use.
    """

    name: str
    model: str = ""
    memory: int = 0
    cores: int = 0

    @property
    def kind(self) -> str:
        """``cpu``, ``cuda``, ``mps`` or ``xpu``."""
        return self.name.partition(":")[0]

    def __str__(self) -> str:
        if self.cores:
            return f"{self.name}, {counted(self.cores, 'core')}"
        return " ".join(word for word in (self.name, self.model, str(Bytes(self.memory)) if self.memory else "") if word)


def choose_device(asked: str, found: Sequence[ComputeDevice]) -> ComputeDevice:
    """Return the device that ``asked`` means (``auto``, ``cuda``, ``cuda:1``); ``found`` are all devices of this machine.

    ``auto`` and a kind without a number mean the first one; ``auto`` prefers an accelerator to the CPU.

    Raises:
        InputError: this machine has no such device; the text lists those that it has.
    """
    kind, _, number = asked.partition(":")
    there = ", ".join(str(device) for device in found)
    if kind not in (*DEVICE_KINDS, AUTO) or (asked.endswith(":") or (number and not number.isdecimal())):
        known = ", ".join((AUTO, *DEVICE_KINDS))
        raise InputError(f"unknown device {asked!r}: known are {known}, with a number where there are several; there is {there}")
    if kind == AUTO and not number:
        return next((device for device in found if device.kind != "cpu"), found[0])
    fits = [device for device in found if device.kind == kind]
    if number:
        fits = [device for device in fits if device.name == asked or (":" not in device.name and int(number) == 0)]
    if not fits:
        raise InputError(f"device {asked!r} is not available here: there is {there}; use one of these, or --device {AUTO}")
    return fits[0]


def cpu_model() -> str:
    """Return what the maker calls this machine's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor() or "cpu")


def core_count() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
