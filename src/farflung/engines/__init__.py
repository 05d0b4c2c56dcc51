"""Engines run a stage's forward, backward and update on one device (``get_engine("torch")``)."""

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
