"""What a checkpoint holds of replicas under a strategy: collected from a worker's replicas, and given back to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from farflung.engines.base import Array
from farflung.graph.ir import Graph
from farflung.step.inbox import Inbox
from farflung.step.reduction.averaging import Averager, Outcome
from farflung.step.reduction.clipping import PreviousNorm
from farflung.step.sync.layer_codecs import codecs_from, codecs_to
from farflung.step.sync.local_step_counts import LocalStepCounts
from farflung.step.sync.replica_slots import RetainedReplica, write_slots
from farflung.step.sync.stage_replica import MeanUnderWay, StageReplica
from farflung.step.sync.value_exchange import ValueExchange
from farflung.sync import Traits

__all__ = ["ReplicaCheckpoint", "ReplicaScale"]

#: What a checkpoint calls the norm by which the next step is clipped, and the loss scale.
_PREVIOUS, _SCALE = "previous_norm", "loss_scale"


class ReplicaScale(Protocol):
    """The loss scale of a pipeline (``stages.loss_scale``)."""

    def load(self, slots: Mapping[str, Array]) -> None:
        """Take the scale from slots of the optimizer, if it is there."""

    def slots(self, names: Collection[str]) -> dict[str, Array]:
        """Return the slot of a stage with the states ``names``: ``loss_scale/<parameter>``."""


class ReplicaCheckpoint:
    """For one worker; called by the compute thread between steps."""

    def __init__(
        self,
        traits: Traits,
        graph: Graph,
        inbox: Inbox,
        exchanges: tuple[ValueExchange, Averager],
        counters: tuple[LocalStepCounts, PreviousNorm, ReplicaScale],
    ) -> None:
        self._traits, self._graph, self._inbox = traits, graph, inbox
        self._values, self._averager = exchanges
        self._local_steps, self._norm, self._scale = counters

    def collect(self, replicas: Iterable[StageReplica], origin: int) -> dict[str, Array]:
        """Return what ``replicas`` hold, as optimizer slots; waits for exchanges under way. ``origin``: see ``RetainedReplica``.

        Raises:
            BaseException: what ended the run meanwhile.
        """
        self._averager.settle()
        found: dict[str, Array] = {}
        for replica in replicas:
            retained = self._retained(replica, origin)
            found |= write_slots(retained, replica.world.members, replica.world.rank, replica.mark)
        return found

    def _retained(self, replica: StageReplica, origin: int) -> RetainedReplica:
        names, world, norm = replica.names(replica.world.every), replica.world, self._norm.retained
        more = {} if norm is None else {_PREVIOUS: {replica.mark: norm}}
        scales = {key.partition("/")[2]: array for key, array in self._scale.slots(names).items()}
        more |= {_SCALE: scales} if scales else {}
        if self._traits.layer_codecs is not None:
            times: Array | None = codecs_to(self._traits.layer_codecs, world)
        else:
            times = self._local_steps.retained if replica.times is None else world.times_and_latencies
        drifted = self._traits.drifts and world.rank > 0  # a checkpoint's own states are those of rank 0
        retained = RetainedReplica(
            origin=origin,
            times=times,
            registers=replica.registers | more,
            parameters=dict(replica.runner.states(names, copy=False)) if drifted else {},
            optimizer=dict(replica.runner.optimizer_states(copy=False)) if drifted else {},
        )
        for tag, mean in replica.exchanges.means.items():
            shapes = {name: self._graph.state[name].spec.shape for name in mean.arrays}
            retained.means[tag] = {name: array.reshape(shapes[name]) for name, array in mean.arrays.items()}
        for tag in replica.exchanges.values:
            retained.values[tag] = self._values.retained(replica, tag)
        return retained

    def restore(self, replica: StageReplica, retained: RetainedReplica) -> None:
        """Give ``replica`` back what a checkpoint holds of it."""
        retained.load(replica.runner)
        if retained.times is not None and self._traits.layer_codecs is not None:
            replica.follow(codecs_from(self._traits.layer_codecs, retained.times, replica.world))
        elif retained.times is not None and replica.times is not None:
            if retained.times.size == 3 * len(replica.world.layers):  # else the stage has other layers now
                replica.follow(replica.world.with_times(retained.times))
        elif retained.times is not None:
            self._local_steps.resume(retained.times)
            replica.follow(replace(replica.world, local_steps=self._local_steps.steps))
        replica.registers.update({register: dict(arrays) for register, arrays in retained.registers.items()})
        for norm in replica.registers.pop(_PREVIOUS, {}).values():
            self._norm.resume(norm)
        self._scale.load({f"{_SCALE}/{name}": array for name, array in replica.registers.pop(_SCALE, {}).items()})
        for tag, means in retained.means.items():
            arrays = {name: array.reshape(-1) for name, array in means.items()}
            replica.exchanges.means[tag] = MeanUnderWay(arrays=arrays, in_place=False)
            self._inbox.put(("averaged", replica.stage, tag), Outcome(gap=0.0, norm=0.0))
        for tag, values in retained.values.items():
            self._values.resume(replica, tag, values, self._traits.memory)
