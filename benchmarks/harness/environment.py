"""What a figure was measured with: versions and the machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from farflung.version import __version__

__all__ = ["environment"]

_LIBRARIES = ("torch", "numpy", "grpcio", "transformers")


def environment() -> dict[str, Any]:
    """Versions and machine, as plain values for JSON."""
    return {
        "farflung": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in _LIBRARIES},
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_before": [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "memory_bytes": psutil.virtual_memory().total,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
