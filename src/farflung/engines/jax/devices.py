"""The devices of this machine that JAX computes on."""

from __future__ import annotations

from typing import Any

import jax
import psutil

from farflung.engines.devices import ComputeDevice, core_count, cpu_model

__all__ = ["compute_devices", "device_called", "device_memory"]

#: JAX's platforms by the names that ``--device`` takes.
_PLATFORMS = {"cuda": "cuda", "rocm": "cuda", "gpu": "cuda", "metal": "mps", "sycl": "xpu"}


def _accelerators() -> list[tuple[str, Any]]:
    return [(f"{_PLATFORMS[device.platform]}:{device.id}", device) for device in jax.devices() if device.platform in _PLATFORMS]


def compute_devices() -> tuple[ComputeDevice, ...]:
    """Return this machine's devices, accelerators first."""
    found = [ComputeDevice(name=name, model=item.device_kind, memory=device_memory(item)[1]) for name, item in _accelerators()]
    cpu = ComputeDevice(name="cpu", model=cpu_model(), memory=psutil.virtual_memory().total, cores=core_count())
    return (*found, cpu)


def device_called(name: str) -> Any:
    """JAX's device behind the name that ``compute_devices`` gave."""
    return dict(_accelerators())[name] if name != "cpu" else jax.local_devices(backend="cpu")[0]


def device_memory(device: Any) -> tuple[int, int]:
    """Free and total bytes of ``device``."""
    if device.platform == "cpu":
        memory = psutil.virtual_memory()
        return memory.available, memory.total
    figures = device.memory_stats() or {}
    total = int(figures.get("bytes_limit", 0))
    return total - int(figures.get("bytes_in_use", 0)), total
