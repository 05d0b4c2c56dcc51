"""Events that a task pool receives, and commands that it emits: plain data, no I/O. Times are seconds of the server's clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "Accept",
    "Answered",
    "Discard",
    "Do",
    "Give",
    "GradientCame",
    "HelperCame",
    "HelperWent",
    "InputCame",
    "PeerFree",
    "PoolCommand",
    "PoolEvent",
    "SendStates",
    "ServerFree",
    "StepBegan",
    "Task",
    "TaskKind",
    "TimePassed",
]


class TaskKind(StrEnum):
    """The two tasks of a slice."""

    FORWARD = "F"
    BACKWARD = "B"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Forward or backward of the slice number ``index`` (a micro-batch of the job) in ``step``."""

    step: int
    kind: TaskKind
    index: int


# -- events ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBegan:
    """The stage has the states of ``step``, in which ``slices`` are this server's."""

    step: int
    slices: tuple[int, ...]
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InputCame:
    """The stage's inputs of the slices ``indices`` have arrived, and stay until the step is committed."""

    indices: tuple[int, ...]
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCame:
    """Everything that the backwards of the slices ``indices`` need, apart from their forwards, has arrived."""

    indices: tuple[int, ...]
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperCame:
    """``helper`` is ready to compute for this stage; ``speed`` is what its device was measured at (FLOP/s)."""

    helper: str
    speed: float
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperWent:
    """``helper`` is lost, or can't be reached."""

    helper: str
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """``device`` has computed ``task`` in ``seconds``."""

    device: str
    task: Task
    seconds: float
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed:
    """Only time has passed."""

    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFree:
    """The server itself has nothing to compute."""

    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFree:
    """``peer``, another server of the stage, has computed all its own slices in ``step``."""

    peer: str
    step: int
    now: float


PoolEvent = StepBegan | InputCame | GradientCame | HelperCame | HelperWent | Answered | TimePassed | ServerFree | PeerFree


# -- commands -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SendStates:
    """Send ``helper`` the stage's states of ``step``, before any of its tasks. Of several servers that it helps, one does."""

    helper: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Give:
    """Send ``task`` to ``helper`` (or a peer server).

    ``recompute``: a backward whose forward it has not computed, so the stage's input is sent, too.
    """

    helper: str
    task: Task
    recompute: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Do:
    """The server computes ``task`` itself; ``recompute`` as in ``Give``."""

    task: Task
    recompute: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """The answer of ``device`` is the one that counts."""

    device: str
    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """The answer of ``device`` is a duplicate, or of a step that is over."""

    device: str
    task: Task


PoolCommand = SendStates | Give | Do | Accept | Discard
