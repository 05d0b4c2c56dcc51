"""Engines run a stage's forward, backward and update on one device (``get_engine("torch")``).

- ``base``: what an engine offers. ``registry``: engines by name. ``selection``: the engine of a worker.
- ``devices``: devices of a machine. ``warmup``: how fast they are. ``probe``: what the broker lets a new worker compute.
- ``torch``, ``jax``, ``reference``, ``shapes``: the engines. ``in_process``: the part of engines without a process of their own.
- ``host``: what engines without PyTorch share.
- ``stateful_runner``, ``layout``, ``present``: what runners of all engines share. ``encoded_value``: what they encode.
- ``isolation``, ``isolated``: an engine in processes of its own. ``site``: one engine over several devices.
- ``offloaded_states``, ``state_file``: optimizer states on a disk.
"""

from farflung.engines.base import (
    Array,
    DeviceReport,
    Engine,
    EngineSettings,
    EngineSupport,
    Forward,
    MicroBatch,
    StageRunner,
    gradient_parts,
)
from farflung.engines.devices import AUTO, ComputeDevice, choose_device
from farflung.engines.registry import ENGINES, get_engine

__all__ = [
    "AUTO",
    "ENGINES",
    "Array",
    "ComputeDevice",
    "DeviceReport",
    "Engine",
    "EngineSettings",
    "EngineSupport",
    "Forward",
    "MicroBatch",
    "StageRunner",
    "choose_device",
    "get_engine",
    "gradient_parts",
]
