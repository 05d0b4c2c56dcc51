"""The devices of one machine that can compute, and the choice among them (``--device auto``)."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farflung.errors import InputError
from farflung.units import Bytes, counted

__all__ = ["AUTO", "DEVICE_KINDS", "ComputeDevice", "choose_device", "core_count", "cpu_model", "require_device"]

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


def require_device(asked: str, drivers: Path = Path("/dev"), gpus: Path = Path("/proc/driver/nvidia/gpus")) -> None:
    """See that this machine may have the device ``asked``, without loading an engine: its kind is known, and so is its driver.

    It takes milliseconds, and PyTorch takes seconds. What it accepts may still be missing: ``choose_device`` has the last word.
    ``drivers`` and ``gpus``: where Linux lists drivers, and the GPUs of NVIDIA's.

    Raises:
        InputError: the machine has no such device.
    """
    kind, _, number = asked.partition(":")
    if kind not in (*DEVICE_KINDS, AUTO) or asked.endswith(":") or (number and not number.isdecimal()):
        raise InputError(f"unknown device {asked!r}: known are {', '.join((AUTO, *DEVICE_KINDS))}, with a number, such as cuda:0")
    remedy = f"use --device cpu, or --device {AUTO}; farflung doctor lists the devices"
    if not _has_driver(kind, drivers):
        raise InputError(f"device {asked!r} is not available here: this machine has no driver for {kind}; {remedy}")
    count = len(list(gpus.iterdir())) if kind == "cuda" and gpus.is_dir() else 0
    if count and number and int(number) >= count and not (drivers / "kfd").exists():
        last = "" if count == 1 else f" to cuda:{count - 1}"
        raise InputError(
            f"device {asked!r} is not available here: this machine has {counted(count, 'GPU')}, cuda:0{last}; {remedy}"
        )


def _has_driver(kind: str, drivers: Path) -> bool:
    """Return ``False`` only if no engine can reach a device of this ``kind``."""
    match kind:
        case "cuda":  # NVIDIA's library, or the driver of AMD's GPUs
            return (drivers / "kfd").exists() or _loads("libcuda.so.1")
        case "xpu":
            return (drivers / "dri").exists() or (drivers / "dxg").exists()
        case "mps":
            return sys.platform == "darwin"
    return True


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


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
