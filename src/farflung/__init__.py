"""Train PyTorch models on machines that are far apart, unequal and unreliable."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from farflung.version import __version__

if TYPE_CHECKING:
    from farflung.api import EarlyStop, Evaluation, StopTraining, TrainResult, capture, connect, simulate, train
    from farflung.job.spec import (
        CheckpointSpec,
        CodecSpec,
        CurveSpec,
        GroupSpec,
        JobSpec,
        LimitSpec,
        OptimizerSpec,
        PlanSpec,
        ReportSpec,
        ScheduleSpec,
        SyncSpec,
    )

__all__ = [
    "CheckpointSpec",
    "CodecSpec",
    "CurveSpec",
    "EarlyStop",
    "Evaluation",
    "GroupSpec",
    "JobSpec",
    "LimitSpec",
    "OptimizerSpec",
    "PlanSpec",
    "ReportSpec",
    "ScheduleSpec",
    "StopTraining",
    "SyncSpec",
    "TrainResult",
    "__version__",
    "capture",
    "connect",
    "simulate",
    "train",
]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for: ``import farflung`` loads no tensor library."""
    if name in __all__:
        home = "farflung.job.spec" if name.endswith("Spec") else "farflung.api"
        return getattr(import_module(home), name)  # not an import statement: rooms read __version__ from here
    raise AttributeError(f"module 'farflung' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
