"""A run at a broker, as a program sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from farflung.api.detached.table import RunStatus
from farflung.api.detached.weights import FetchedWeights
from farflung.api.result import TrainResult
from farflung.engines.base import Array
from farflung.errors import InputError
from farflung.telemetry.records import EvaluationRecord, StepRecord

if TYPE_CHECKING:
    import torch

__all__ = ["DetachedRun", "OnRecord"]

#: Called with each new record.
OnRecord = Callable[[StepRecord | EvaluationRecord], None]


class _Broker(Protocol):
    """What a run asks of its broker."""

    def status(self, run: str) -> RunStatus: ...

    def wait(self, run: str, on_record: OnRecord | None = None) -> TrainResult: ...

    def stop(self, run: str) -> None: ...

    def export(self, run: str, path: str | Path) -> list[str]: ...

    def weights(self, run: str) -> FetchedWeights: ...


class DetachedRun:
    """One run. It goes on when this process ends; ``connect(ticket).run(name)`` returns it again."""

    def __init__(self, name: str, broker: _Broker) -> None:
        self.name, self._broker = name, broker

    @property
    def status(self) -> RunStatus:
        """State, steps and loss, asked of the broker."""
        return self._broker.status(self.name)

    def wait(self, on_record: OnRecord | None = None) -> TrainResult:
        """Wait until the run is over. ``on_record`` is called with each record, also with those from before this call.

        The result fetches weights when they are first used.

        Raises:
            TrainingError: the run failed; the text is its cause.
        """
        return self._broker.wait(self.name, on_record)

    def stop(self) -> None:
        """Ask the run to end after its current step."""
        self._broker.stop(self.name)

    def export(self, path: str | Path) -> list[str]:
        """Write the weights of a run that is over, and return what was written (see ``Cluster.export``)."""
        return self._broker.export(self.name, path)

    def state_dict(self) -> dict[str, Array]:
        """The weights of a run that is over, as NumPy arrays by all their names."""
        return self._broker.weights(self.name).state_dict()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The weights of a run that is over, as CPU tensors for ``module.load_state_dict``."""
        return self._broker.weights(self.name).tensors()

    def __repr__(self) -> str:
        return f"DetachedRun({self.name!r})"


def check_path(path: Path) -> None:
    """See that nothing is overwritten.

    Raises:
        InputError: something is there already.
    """
    if any(path.iterdir()) if path.is_dir() else path.exists():
        raise InputError(f"{path} exists already: choose another path, or remove it")
