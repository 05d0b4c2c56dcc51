"""How a device of JAX is measured (``farflung.engines.warmup``)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from farflung.engines.devices import cpu_model
from farflung.engines.jax.devices import device_called, device_memory
from farflung.engines.jax.runner import JaxRunner
from farflung.engines.warmup import SmallModels, WarmUpDevice, host_processors

__all__ = ["small_models", "warm_up_device"]


@cache
def small_models(name: str) -> SmallModels:
    """The models that measure the device ``name``: compiled once in a process, which takes seconds."""
    return SmallModels(warm_up_device(name))


@cache
def warm_up_device(name: str) -> WarmUpDevice:
    """The device ``name``, e.g. ``cpu`` or ``cuda:0``."""
    device = device_called(name)
    return WarmUpDevice(
        name=name,
        model=cpu_model() if device.platform == "cpu" else device.device_kind,
        processors=host_processors() if device.platform == "cpu" else (name.replace(":", " "),),
        open=lambda piece, settings: JaxRunner(piece, settings, device, None),
        multiply=lambda size: _multiply(device, size),
        memory=lambda: device_memory(device),
    )


def _multiply(device: Any, size: int) -> Callable[[], object]:
    product = jax.jit(jnp.matmul)
    a = jax.device_put(jnp.ones((size, size), jnp.float32), device)
    product(a, a).block_until_ready()
    return lambda: product(a, a).block_until_ready()
