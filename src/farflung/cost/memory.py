"""Memory of a stage: what constraint (6) compares with the device's limit.

Alive through a step: parameters, buffers, gradients, optimizer state, and what a server keeps for its helpers. Then the larger
of two phases: forward and backward (what autograd keeps of each micro-batch in flight, the values received and sent, the
operator that runs, messages under way), and the update (uses of tied parameters from other stages, temporaries of the optimizer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from farflung.cost.table import OpCost

__all__ = [
    "ALLOCATOR",
    "MemorySettings",
    "StageMemory",
    "cast_factor",
    "serving_bytes",
    "stage_memory",
]

Vector = npt.NDArray[np.float64]
#: A number of bytes, or one for each of several stages.
Amount = TypeVar("Amount", float, Vector)

#: Copies of a message under way: the value in the engine's memory is counted apart.
_MESSAGE_COPIES = 2.0
#: Resident memory over what is alive, for what comes and goes in a step. Measured with glibc's allocator on GPT-2 124 M cut for
#: 3 workers: the whole was 1.06 to 1.19 of what is alive, which is up to 1.5 on the part that comes and goes.
#: Freed blocks of some megabytes stay in its heaps; forcing each into a mapping of its own gave 0.91 to 0.97, but took 13 to
#: 50 % more processor time on a 14 M model, because fresh pages must be zeroed every time.
ALLOCATOR = 1.6
#: Temporaries of an update, in sizes of the largest parameter.
_UPDATE_TEMPORARIES = 2.0
#: Parameters whose offloaded states are in memory at once: one is updated, one is read, one is written.
_OFFLOADED = 3.0


def cast_factor(precision: str) -> float:
    """``MemorySettings.casts`` of a job's precision."""
    return 0.5 if precision in ("bf16", "fp16") else 0.0


def serving_bytes(slices: int, states: Amount, gradients: Amount, received: Amount, sent: Amount) -> Amount:
    """What a stage's server keeps while others help it (``stage_server``), with ``slices`` micro-batches of its own in a step.

    A copy of the ``states`` that helpers are sent; the inputs and the returned gradients of all slices until the step is over
    (``received`` and ``sent``: of one slice), because a task may be taken over; the ``gradients`` of all slices but one, which
    wait where the first one comes last, and their sum, in new memory with each that is added. It is a bound: mostly some wait.
    """
    return states + slices * (received + sent) + (slices - 1 + 2) * gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """``optimizer``: state bytes per trainable byte. ``in_flight``: micro-batches between forward and backward at once.

    ``casts``: bytes of lower-precision copies per byte of parameters, which each micro-batch in flight keeps under autocast
    (0.5 for bfloat16 beside float32; kept values are counted in full precision, which is an upper bound). ``clones``: bytes
    of the states that a stage which recomputes keeps per micro-batch as they were (``graph.drift``). ``slices``: micro-batches
    of a step with which others may help (0: nobody helps). ``delayed``: they keep the parameters of one update before, too.
    ``offload``: the optimizer state is on a disk, but for that of a few parameters during the update.
    """

    optimizer: float = 0.0
    in_flight: int = 1
    recompute: bool = False
    casts: float = 0.0
    clones: float = 0.0
    slices: int = 0
    delayed: bool = False
    offload: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageMemory:
    """Bytes of stages that start at one position and stop at several (arrays of equal length)."""

    parameters: Vector
    gradients: Vector
    optimizer: Vector
    activations: Vector
    workspace: Vector
    messages: Vector
    update: Vector
    serving: Vector

    @property
    def always(self) -> Vector:
        """What is alive through a step."""
        return self.parameters + self.gradients + self.optimizer + self.serving

    @property
    def total(self) -> Vector:
        """The most that is alive at once, and what the allocator keeps beside it."""
        return self.always + ALLOCATOR * np.maximum(self.activations + self.workspace + self.messages, self.update)

    def parts(self, index: int = 0) -> dict[str, float]:
        """Name -> bytes of one of the stages; ``allocator`` is what it keeps beside what is alive."""
        found = {item.name: float(getattr(self, item.name)[index]) for item in fields(self)}
        beside = float(self.total[index] - self.always[index])
        return found | {"allocator": beside * (1.0 - 1.0 / ALLOCATOR)}


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """What stages hold by kind of memory, whatever the settings (see ``stage_memory``)."""

    parameters: Vector
    buffers: Vector
    trainable: Vector
    uses: Vector
    saved: Vector
    workspace: Vector
    update: Vector
    largest: Vector


#: Of single stages, by table and ends: planners ask for the same ones again and again.
_HELD: WeakKeyDictionary[OpCost, dict[tuple[int, int], _Held]] = WeakKeyDictionary()
_KEPT = 1 << 14


def stage_memory(
    cost: OpCost, start: int, stops: Sequence[int], settings: MemorySettings, received: Vector, sent: Vector
) -> StageMemory:
    """Memory of the stages [start, stop) for each stop (ascending, all greater than ``start``).

    ``received``, ``sent``: bytes per micro-batch of the values that arrive and leave, one element per stop.
    """
    held = _one(cost, start, stops[0]) if len(stops) == 1 else _held(cost, start, stops)
    saved = held.saved + settings.casts * held.parameters
    if settings.recompute:
        activations = saved + settings.in_flight * (received + settings.clones) + sent
    else:
        activations = settings.in_flight * (saved + received + sent)
    states, gradients = held.parameters + held.buffers, held.trainable + held.uses
    serving = np.zeros(len(states))
    if settings.slices:
        serving = serving_bytes(settings.slices, states * (1 + settings.delayed), gradients, received, sent)
    return StageMemory(
        parameters=states,
        gradients=gradients,
        optimizer=(0.0 if settings.offload else settings.optimizer) * held.trainable,
        activations=activations,
        workspace=held.workspace,
        messages=_MESSAGE_COPIES * (received + sent),
        update=held.update + (_OFFLOADED * settings.optimizer if settings.offload else 0.0) * held.largest,
        serving=serving,
    )


def _one(cost: OpCost, start: int, stop: int) -> _Held:
    kept = _HELD.setdefault(cost, {})
    found = kept.get((start, stop))
    if found is None:
        if len(kept) >= _KEPT:
            kept.clear()
        found = kept[start, stop] = _held(cost, start, [stop])
    return found


def _held(cost: OpCost, start: int, stops: Sequence[int]) -> _Held:
    ends = np.asarray(stops, dtype=np.int64)
    uses = cost.uses.totals(start, ends)
    elsewhere = np.where(uses > 0, cost.tied[-1] - uses, 0.0)
    largest = _largest(cost, start, ends)
    workspace = np.maximum.accumulate(cost.workspace[start : int(ends[-1])])[ends - start - 1] if len(ends) else ends
    return _Held(
        parameters=cost.parameters.totals(start, ends),
        buffers=cost.buffers.totals(start, ends),
        trainable=cost.trainable.totals(start, ends),
        uses=uses,
        saved=cost.saved.totals(start, ends),
        workspace=np.asarray(workspace, dtype=np.float64),
        update=elsewhere + _UPDATE_TEMPORARIES * largest,
        largest=largest,
    )


def _largest(cost: OpCost, start: int, ends: npt.NDArray[np.int64]) -> Vector:
    """The largest trainable parameter read in [start, stop) for each stop."""
    first = int(np.searchsorted(cost.trainable.at, start))
    peaks = np.maximum.accumulate(np.concatenate(([0.0], cost.trainable.size[first:])))
    found: Vector = peaks[np.searchsorted(cost.trainable.at[first:], ends)]
    return found
