"""The error tree: every failure that a user can reach names the rule, the value and the remedy.

FarflungError
|- InputError          what the user wrote can't be used (job file, topology, arguments)
|- CaptureError        a model can't become a graph as it is written
|- GraphError          a graph is corrupt, too large or uses an operator that is not allowed; or an operator failed on a batch
|- PlanError           no plan exists under the constraints (says which device lacks how much)
|- CodecError          a payload can't be encoded or decoded
|- WireError           a frame or message is truncated, oversized or malformed
|- SecurityError       a ticket or certificate is wrong, expired or revoked
|- VersionError        two parts speak different versions
|- ConnectionLost      a peer can't be reached any more
|- CheckpointError     a checkpoint is incomplete, torn or belongs to something else
|- DataError           data are missing or unreadable on the machine that needs them, or do not fit the model
|- DiskFull            there is no space for a file
|- MemoryExceeded      a buffer would exceed what this process may use
|- EmulationError      this machine can't emulate a network, or the emulator ended
|- EngineCrashed       the process that computes for an attempt has died, or does not answer
|- TrainingError       training itself failed (loss is not a number, worker died)
'- Stopped             the user asked for the end
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

# The kinds of errors: machines look a kind up here by its name. So ``FailedBatch`` is not in the list.
__all__ = [
    "CaptureError",
    "CheckpointError",
    "CodecError",
    "ConnectionLost",
    "DataError",
    "DiskFull",
    "EmulationError",
    "EngineCrashed",
    "FarflungError",
    "GraphError",
    "InputError",
    "MemoryExceeded",
    "PlanError",
    "SecurityError",
    "Stopped",
    "TrainingError",
    "VersionError",
    "WireError",
]


class FarflungError(Exception):
    """Base of all errors that farflung raises on purpose; ``str(error)`` is one clear line."""

    exit_code: ClassVar[int] = 1
    #: The peer from which the message or the numbers came that caused the error (empty: nobody else did).
    blames: str = ""
    #: The batch on which a computation failed (``None``: nothing was computed).
    batch: FailedBatch | None = None

    def blaming(self, peer: str) -> Self:
        """Return this error, for which ``peer`` is to blame (empty: nobody else)."""
        self.blames = peer
        return self

    def of_batch(self, batch: FailedBatch | None) -> Self:
        """Return this error, which a computation on ``batch`` has caused."""
        self.batch = batch
        return self

    def naming(self, batch: FailedBatch) -> Self:
        """Return this error as ``of_batch`` does, with ``batch`` before its text."""
        self.args = (f"{batch}: {self}",)
        return self.of_batch(batch)


class InputError(FarflungError):
    """A job file, topology file or argument can't be used."""

    exit_code = 2


class CaptureError(FarflungError):
    """A model can't be captured as it is written; the text says what to change."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class FailedBatch:
    """Micro-batch ``index`` of training step ``step``, or batch ``index`` of the evaluation after ``step`` steps."""

    step: int
    index: int
    evaluates: bool = False

    def __str__(self) -> str:
        if self.evaluates:
            return f"evaluation after step {self.step}, batch {self.index}"
        return f"step {self.step}, micro-batch {self.index}"


class GraphError(FarflungError):
    """A graph document is corrupt, too large, or holds an operator that is not allowed; or an operator failed."""

    exit_code = 4


class PlanError(FarflungError):
    """No plan satisfies the constraints; the text says which device lacks how much."""

    exit_code = 5


class CodecError(FarflungError):
    """A payload can't be encoded or decoded."""

    exit_code = 6


class WireError(FarflungError):
    """A frame or message is truncated, oversized or malformed."""

    exit_code = 7


class SecurityError(FarflungError):
    """A ticket or certificate is wrong, expired or revoked."""

    exit_code = 8


class VersionError(FarflungError):
    """Two parts of a cluster speak different versions."""

    exit_code = 9


class ConnectionLost(FarflungError):
    """A peer can't be reached any more."""

    exit_code = 10

    @classmethod
    def of(cls, error: BaseException) -> FarflungError:
        """What ended a transfer: ``error`` itself where it is one of farflung's, else a lost connection that says the same."""
        return error if isinstance(error, FarflungError) else cls(str(error))


class CheckpointError(FarflungError):
    """A checkpoint is incomplete, torn, or belongs to another model."""

    exit_code = 11


class DataError(FarflungError):
    """Data are missing or unreadable on the machine that needs them, or do not fit the model."""

    exit_code = 12


class TrainingError(FarflungError):
    """Training failed: the loss is not a number, or a worker died."""

    exit_code = 13


class EmulationError(FarflungError):
    """A network can't be emulated here (rights, kernel), or its router ended."""

    exit_code = 14


class DiskFull(FarflungError):
    """There is no space for a file; what was there before is whole."""

    exit_code = 15


class MemoryExceeded(FarflungError):
    """A buffer would exceed what this process may use (``--memory``)."""

    exit_code = 17


class EngineCrashed(FarflungError):
    """The process that computes for an attempt has died, or does not answer; the text names the operator if one ran."""

    exit_code = 16


class Stopped(FarflungError):
    """The user asked for the end; what was committed is kept."""

    exit_code = 130
