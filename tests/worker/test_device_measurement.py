"""The device of a worker: what ``auto`` falls back to, and what is said."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from farflung.engines import ComputeDevice, DeviceReport
from farflung.engines.isolation import open_engine
from farflung.errors import InputError
from farflung.worker.device_measurement import MeasuredDevice, measure_device
from farflung.worker.options import WorkerOptions

CPU = ComputeDevice(name="cpu", cores=8)
GPU = ComputeDevice(name="cuda:0", model="NVIDIA RTX 4090", memory=24_000_000_000)
REPORT = DeviceReport(name="x", flops_per_second=1e9, launch_seconds=0.0, total_bytes=1, free_bytes=1)


class Engine:
    """Has a GPU, which works or does not."""

    def __init__(self, *broken: str) -> None:
        self.broken = broken

    def devices(self) -> tuple[ComputeDevice, ...]:
        return (GPU, CPU)

    def measure(self, device: str, peak: float | None = None) -> DeviceReport:
        if device in self.broken:
            raise RuntimeError("CUDA error: no kernel image is available for execution here\nmore")
        return REPORT


def measured(asked: str, *broken: str) -> tuple[str, list[str]]:
    said: list[str] = []
    engine: Any = Engine(*broken)
    chosen, report = measure_device(engine, asked, None, said.append)
    assert report is REPORT
    return chosen.name, said


def test_the_accelerator_is_taken_and_named() -> None:
    assert measured("auto") == ("cuda:0", ["device: cuda:0 NVIDIA RTX 4090 24 GB"])
    assert measured("cpu") == ("cpu", ["device: cpu, 8 cores"])


def test_auto_falls_back_to_the_cpu_and_says_why() -> None:
    assert measured("auto", "cuda:0") == (
        "cpu",
        [
            "device 'cuda:0' can't be used: CUDA error: no kernel image is available for execution here; try --device cpu",
            "device: cpu, 8 cores",
        ],
    )


def test_a_worker_offers_at_most_the_memory_of_its_device() -> None:
    said: list[str] = []
    options = WorkerOptions(device="cpu", memory=1e14)
    found = MeasuredDevice(open_engine("off", said.append, name="reference"), options, said.append)
    assert found.offer["memory"] == found.at_most(1e14) == psutil.virtual_memory().total
    assert found.at_most(1.0) == 1.0
    assert "the limit of 100 TB is more than all memory of cpu; change it with farflung limit --memory" in said


def test_a_device_that_was_named_is_not_replaced() -> None:
    with pytest.raises(InputError, match="device 'cuda:0' can't be used: CUDA error: no kernel image is available"):
        measured("cuda", "cuda:0")


def test_a_cpu_that_does_not_work_is_an_error() -> None:
    with pytest.raises(InputError, match="device 'cpu' can't be used"):
        measured("auto", "cuda:0", "cpu")
