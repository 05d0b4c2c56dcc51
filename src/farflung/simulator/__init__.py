"""Discrete events in virtual time: what a plan would do on a topology, before anything runs.

- ``plan_program``: from a plan to a program. ``program``: its tasks. ``settings``: what a simulation assumes.
- ``run``: simulates. ``machine``, ``network``: devices and links in virtual time. ``failures``: losses. ``hybrid``: helpers.
- ``result``, ``spans``: what it finds. ``prices``, ``typical_power``: cost and energy.
"""

from farflung.simulator.failures import FailureRun, simulate_failures
from farflung.simulator.hybrid import HelpedRun, HelperLosses, simulate_helped
from farflung.simulator.prices import Bill, DevicePrice, PriceTable, TrafficPrice
from farflung.simulator.result import DeviceUse, LinkUse, MemoryPoint, Simulation
from farflung.simulator.run import Simulator, simulate
from farflung.simulator.settings import CODEC_SPEEDS, CodecSpeed, Jitter, SimulationSettings

__all__ = [
    "CODEC_SPEEDS",
    "Bill",
    "CodecSpeed",
    "DevicePrice",
    "DeviceUse",
    "FailureRun",
    "HelpedRun",
    "HelperLosses",
    "Jitter",
    "LinkUse",
    "MemoryPoint",
    "PriceTable",
    "Simulation",
    "SimulationSettings",
    "Simulator",
    "TrafficPrice",
    "simulate",
    "simulate_failures",
    "simulate_helped",
]
