"""How much disk space the checkpoints of a run take at once, so that a limit that is too small is reported before training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from farflung.graph.ir import StateKind
from farflung.job import JobSpec
from farflung.messages.submission import Bundle
from farflung.optim import checkpoint_bytes
from farflung.units import Bytes

__all__ = ["CheckpointRoom", "checkpoint_room", "roomy"]

#: Logs, metrics and the heads of files, as a share of the checkpoints.
_BESIDE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRoom:
    """``one``: bytes of a checkpoint, at least. ``surely``: how many are stored at once in every case. ``most``: how many may be.

    A new checkpoint is complete before the oldest one is deleted.
    """

    one: int
    surely: int
    most: int


def checkpoint_room(bundle: Bundle) -> CheckpointRoom:
    """Return the space that the run's checkpoints take: parameters and buffers, and the states of the optimizer.

    What a synchronization strategy stores beside these is not counted.
    """
    graph, job = bundle.graph, bundle.job
    if graph.serves:
        return CheckpointRoom(one=0, surely=0, most=0)
    stored = [one for one in graph.states if one.persistent and one.kind is not StateKind.CONSTANT]
    states = sum(one.spec.nbytes for one in stored)
    surely, most = _at_once(job)
    return CheckpointRoom(one=states + math.floor(checkpoint_bytes(job.optimizer, graph)), surely=surely, most=most)


def _at_once(job: JobSpec) -> tuple[int, int]:
    """Return how many checkpoints are stored at once: in every case, and at most. ``checkpoint.keep_every`` is left out."""
    wanted = job.checkpoint
    written = job.steps // wanted.every if wanted.every else 0
    written += wanted.at_end and not (wanted.every and job.steps % wanted.every == 0)
    surely = min(written, wanted.keep + 1)
    return surely, wanted.keep + 1 if wanted.recover_every else surely


def roomy(nbytes: float) -> str:
    """Return a limit with room for ``nbytes`` of checkpoints, as a person writes it."""
    return Bytes(nbytes * (1.0 + _BESIDE)).written(3)
