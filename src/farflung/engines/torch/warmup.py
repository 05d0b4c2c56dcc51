"""How a device of PyTorch is measured (``farflung.engines.warmup``)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from farflung.engines.devices import cpu_model
from farflung.engines.torch.accelerators import TorchProbe, device_memory, synchronize
from farflung.engines.torch.runner import TorchRunner
from farflung.engines.warmup import WarmUpDevice, host_processors

__all__ = ["warm_up_device"]


def warm_up_device(name: str) -> WarmUpDevice:
    """The device ``name``, e.g. ``cpu`` or ``cuda:0``."""
    place = torch.device(name)
    return WarmUpDevice(
        name=name,
        model=cpu_model() if place.type == "cpu" else TorchProbe().model(place.index or 0),
        processors=_processors(place),
        open=lambda piece, settings: TorchRunner(piece, settings, place, None),
        multiply=lambda size: _multiply(place, size),
        memory=lambda: device_memory(place),
        synchronize=lambda: synchronize(place),
    )


def _processors(place: torch.device) -> tuple[str, ...]:
    if place.type == "cuda":
        return (f"cuda {torch.cuda.get_device_properties(place).uuid}",)
    return host_processors() if place.type == "cpu" else (f"{place.type} {place.index or 0}",)


def _multiply(place: torch.device, size: int) -> Callable[[], object]:
    a = torch.ones(size, size, device=place)
    b = a.clone()

    def call() -> None:
        with torch.no_grad():
            torch.mm(a, b)
        synchronize(place)

    return call
