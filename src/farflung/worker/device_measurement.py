"""Which device a worker computes on, and what a short warm-up of it finds."""

from __future__ import annotations

from collections.abc import Callable

from farflung.engines import AUTO, ComputeDevice, DeviceReport, Engine, choose_device, get_engine
from farflung.errors import InputError

__all__ = ["check_device", "load_engine", "measure_device"]


def load_engine() -> Engine:
    """Return the engine that computes.

    Raises:
        InputError: PyTorch is not installed.
    """
    return get_engine("torch")


def check_device(asked: str) -> None:
    """See whether this machine has the device that ``asked`` means (see ``choose_device``).

    Raises:
        InputError: it does not.
    """
    choose_device(asked, load_engine().devices())


def measure_device(
    engine: Engine, asked: str, peak: float | None, say: Callable[[str], None]
) -> tuple[ComputeDevice, DeviceReport]:
    """Measure the device that ``asked`` means (see ``choose_device``), and say which one it is.

    ``auto`` falls back to the CPU where the accelerator does not work, e.g. one that is too old for this PyTorch.

    Raises:
        InputError: there is no such device, or it does not work.
    """
    found = engine.devices()
    chosen = choose_device(asked, found)
    try:
        report = _measure(engine, chosen, peak)
    except InputError as error:
        if asked != AUTO or chosen.kind == "cpu":
            raise
        say(str(error))
        chosen = found[-1]
        report = _measure(engine, chosen, peak)
    say(f"device: {chosen}")
    return chosen, report


def _measure(engine: Engine, chosen: ComputeDevice, peak: float | None) -> DeviceReport:
    try:
        return engine.measure(chosen.name, peak)
    except (RuntimeError, AssertionError, ValueError) as error:  # what PyTorch raises for a device that does not work
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"device {chosen.name!r} can't be used: {line}; try --device cpu") from None
