"""Replicas that agree by a sync strategy: carries out the programs of ``farflung.sync`` on an engine's tensors.

Source: the protocol of ``farflung.sync.commands``; ``farflung.testing.replicas`` is its specification. Parameters and gradients
stay in the engine; the other registers are arrays on the host. A weighted mean is added up on the way
(``reduction.averaging``), parameters in place. With lossy codecs, and where values are needed one by one, an exchange sends a
member's layers to the other members of its group at once; codecs are applied to the own layers, too, so all count the same.

What differs from an ideal engine: lanes are ignored (a link carries frames in the order in which they were made).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from farflung.engines.base import Array, StageRunner
from farflung.messages.data import LayerExchange, LocalStepTime, PreviousNorms
from farflung.messages.router import PeerRouter
from farflung.plan.model import SyncPlan
from farflung.plan.synchronization import remote_states, strategy_of, world_of
from farflung.step.inbox import Inbox
from farflung.step.reduction.averaging import Averager
from farflung.step.reduction.clipping import PreviousNorm
from farflung.step.reduction.piece_sender import PieceSender
from farflung.step.reduction.pieces import first_servers
from farflung.step.run_setup import RunSetup
from farflung.step.sync.command_runner import CommandRunner
from farflung.step.sync.layer_codecs import LayerCodecFollower
from farflung.step.sync.layer_set_follower import LayerSetFollower
from farflung.step.sync.layer_times import LayerTimes
from farflung.step.sync.local_step_counts import LocalStepCounts
from farflung.step.sync.mean_exchange import MeanExchange
from farflung.step.sync.replica_checkpoint import ReplicaCheckpoint, ReplicaScale
from farflung.step.sync.replica_slots import read_slots
from farflung.step.sync.stage_replica import StageProbe, StageReplica
from farflung.step.sync.value_exchange import ValueExchange
from farflung.step.transfer.codec_gauge import CodecGauge
from farflung.step.transfer.outbox import Outbox
from farflung.sync import Strategy
from farflung.sync.commands import Exchange
from farflung.telemetry.trace import SpanRing

__all__ = ["Synchronizer", "synchronized"]


class Synchronizer:
    """The strategy of a plan on one worker. The compute thread calls all methods."""

    def __init__(
        self,
        setup: RunSetup,
        inbox: Inbox,
        outbox: Outbox,
        reports: tuple[Callable[[str], None], SpanRing, CodecGauge],
        scale: ReplicaScale,
    ) -> None:
        """``reports``: what takes lines for people, the trace, and what measures codecs. ``scale``: of this pipeline."""
        notify, trace, gauge = reports
        assert setup.plan.sync is not None
        self._setup, self._notify = setup, notify
        self.strategy = strategy_of(setup.plan)
        traits = self.strategy.traits
        norm = self._norm = PreviousNorm(setup, inbox, outbox)
        self._local_steps = LocalStepCounts(setup, traits, inbox, outbox)
        self._values = ValueExchange(setup, inbox, outbox, gauge)
        averager = self._averager = Averager(
            {index: setup.plan.stages[index].devices for index in setup.own_stages},
            _parameter_bytes(setup, setup.plan.sync),
            inbox,
            PieceSender(setup.run, outbox),
        )
        devices = [stage.devices for stage in setup.plan.stages]
        self._commands = CommandRunner(traits, (self._values, MeanExchange(setup, averager)), norm, devices, (trace, notify))
        self._commands.begin_step(setup.first_step, ())
        self._follower: LayerSetFollower | LayerCodecFollower = (
            LayerSetFollower(self.strategy, self._values, notify)
            if traits.layer_codecs is None
            else LayerCodecFollower(traits.layer_codecs, setup, self._values, notify)
        )
        self._checkpoint = ReplicaCheckpoint(
            traits, setup.graph, inbox, (self._values, averager), (self._local_steps, norm, scale)
        )
        self._replicas: dict[int, StageReplica] = {}
        #: The step from which the strategy counts.
        self._origin = setup.first_step

    def register(self, router: PeerRouter) -> None:
        """Register what takes messages of other replicas (transport threads)."""
        router.register(LayerExchange, self._values.receive)
        router.register(LocalStepTime, self._local_steps.receive)
        router.register(PreviousNorms, self._norm.receive)
        self._averager.register(router)

    # -- a run --------------------------------------------------------------------------------------------------------

    def open(self, runners: Mapping[int, StageRunner], step: int, slots: Mapping[str, Array] | None = None) -> None:
        """Before ``step``, the first one or that of a resumed run: all replicas hold the states of rank 0.

        ``slots``: what ``retained`` returned for a checkpoint. Without those of this replica the strategy counts steps from here:
        nothing that it would have begun before is under way. So does a strategy without a barrier under other local steps.
        """
        self._origin = step
        anew = planned = False
        for stage, runner in runners.items():
            replica = self._opened(stage, runner)
            if replica is None:
                continue
            self._replicas[stage] = replica
            names, world = set(replica.names(replica.world.every)), replica.world
            own = {key: value for key, value in (slots or {}).items() if key.partition("/")[2] in names}
            retained = read_slots(own, world.members, world.rank)
            if retained is None:
                self._commands.run(replica, self.strategy.init(world))
                anew = anew or step > 0
            elif self._local_steps.continues(retained.times):
                self._origin = retained.origin
                self._checkpoint.restore(replica, retained)
            else:
                planned = True
                self._checkpoint.restore(replica, replace(retained, values={}))
                _begin_again(replica, self._commands, self.strategy, step - retained.origin)
        traits = self.strategy.traits
        if planned and self._setup.device == self._setup.leader:
            self._notify(f"step {step}: other local steps are planned: {traits.name} continues from the common model")
        if anew and self._setup.device == self._setup.leader and (self.drifts or traits.registers):
            members = next(iter(self._replicas.values())).world.members
            what = f"what replicas hold of their own, and registers, were not kept by as many pipelines ({members})"
            self._notify(f"step {step}: {traits.name} begins anew from the first one's states: {what}")

    def _opened(self, stage: int, runner: StageRunner) -> StageReplica | None:
        """The replica of ``stage`` here; ``None``: the stage trains nothing."""
        setup, plan = self._setup, self._setup.plan
        assert plan.sync is not None
        layers = tuple(layer.parameters for layer in plan.sync.layers[stage])
        if not layers:
            return None
        world = world_of(plan, setup.graph, setup.job, stage, setup.number)
        elsewhere = remote_states(plan.sync, stage)
        mark = next((name for layer in layers for name in layer if name not in elsewhere), layers[0][0])
        servers = first_servers([int(layer.nbytes) for layer in world.layers], world.members)
        times = LayerTimes(world) if self.strategy.traits.layer_gain else None
        return StageReplica(stage, world, layers, runner, mark, first_servers=servers, times=times)

    def retained(self) -> dict[str, Array]:
        """What a checkpoint must hold of the replicas here, as optimizer slots; waits for exchanges that are under way.

        Raises:
            BaseException: what ended the run meanwhile.
        """
        return self._checkpoint.collect(self._replicas.values(), self._origin)

    @property
    def drifts(self) -> bool:
        """Whether replicas hold parameters of their own between exchanges."""
        return self.strategy.traits.drifts

    @property
    def divergence(self) -> float | None:
        """The largest relative distance of a replica's parameters from the mean in this step (``None``: it averaged none)."""
        return self._commands.facts.divergence

    @property
    def excluded(self) -> frozenset[str]:
        """The devices whose gradients of this step were not finite, so that a robust rule left them out."""
        return frozenset(self._commands.facts.excluded)

    def agree(self, step: int) -> None:
        """At the end of training, after ``step`` steps: the replicas' parameters become equal, by default their mean."""
        if not self.drifts:
            return
        ends = [(replica, self.strategy.end(step - self._origin, replica.world)) for replica in self._replicas.values()]
        for exchanging in (True, False):  # begin all before waiting for any
            for replica, commands in ends:
                self._commands.run(replica, [one for one in commands if isinstance(one, Exchange) is exchanging])

    # -- a step -------------------------------------------------------------------------------------------------------

    def begin(self, step: int, rates: Sequence[float]) -> None:
        """``step`` begins: which program each stage has in it."""
        place = step - self._origin
        self._commands.begin_step(step, rates)
        self._values.begin_step(step)
        self._averager.begin_step(step)
        changed = self._local_steps.begin_step(place)
        if changed is not None and self._setup.device == self._setup.leader:
            self._notify(f"step {step}: {changed}")
        for replica in self._replicas.values():
            if changed is not None:
                replica.follow(replace(replica.world, local_steps=self._local_steps.steps))
            replica.begin_step(self.strategy.step(place, replica.world))

    def participants(self, step: int) -> frozenset[int]:
        """The pipelines that take a local step in ``step``."""
        place = step - self._origin
        return self._local_steps.participants(place) - self._resting(place)

    def due(self, step: int) -> dict[int, int]:
        """The pipelines whose losses count in ``step``, and the step in which each made them.

        A local step that began before this attempt counts in none: nobody has its losses any more.
        """
        place, first = step - self._origin, self._setup.first_step - self._origin
        found, resting = self._local_steps.due(place), self._resting(place)
        return {rank: at + self._origin for rank, at in found.items() if at >= first and rank not in resting}

    def _resting(self, place: int) -> frozenset[int]:
        return self.strategy.resting(place, len(self._setup.plan.stages[0].devices))

    @property
    def probes(self) -> dict[int, StageProbe]:
        """What each stage here measures in this step."""
        return {replica.stage: probe for replica in self._replicas.values() if (probe := replica.probe) is not None}

    def use_derivatives(self, slopes: Mapping[int, Sequence[float]]) -> None:
        """Store what arrived of each replica's slopes in this step, by rank; the own ones until they have gone to others."""
        self._commands.use_derivatives(slopes)
        for replica in self._replicas.values():
            replica.record_slope(slopes[replica.world.rank][-1])

    def watch(self, stage: int, runner: StageRunner) -> None:
        """Before the last backward of a step: layers that the strategy takes early are taken as their gradients get complete."""
        replica = self._replicas.get(stage)
        if replica is None or not replica.program.ready:
            return
        layers = sorted(replica.program.ready if replica.times is None else replica.world.every, reverse=True)
        groups = [self._needed(replica, layer) for layer in layers]
        runner.watch(groups, lambda index: self._ready(replica, layers[index]))
        if replica.times is not None:
            replica.times.begins()

    def watched(self, stage: int) -> None:
        """After that backward."""
        self._local_steps.backward_ended()
        replica = self._replicas.get(stage)
        if replica is not None and replica.times is not None:
            replica.times.ends()

    def _needed(self, replica: StageReplica, layer: int) -> frozenset[str]:
        """The parameters whose gradients the commands of ``layer`` use."""
        layers = {layer}
        for command in replica.program.ready.get(layer, ()):
            layers |= set(command.layers)
        return frozenset(replica.names(sorted(layers)))

    def _ready(self, replica: StageReplica, layer: int) -> None:
        """The backward of ``layer`` has ended (called inside the runner's backward, on the compute thread)."""
        at = 0.0 if replica.times is None else replica.times.now()
        if layer in replica.program.ready:
            self._commands.run_early(replica, layer)
        if replica.times is not None:
            replica.times.ready(layer, at)

    def finish(self, scale: Array | None, *, updates: bool = True) -> None:
        """After all backwards: the rest of the step, means included, and ``updates`` unless the own gradients overflowed."""
        facts = self._commands.facts
        self._commands.scale_gradients(scale, updates=updates)
        for replica in self._replicas.values():
            for layer in sorted(replica.program.ready, reverse=True):
                self._commands.run_early(replica, layer)
        place = facts.step - self._origin
        for replica in self._replicas.values():
            self._follower.gradients_complete(replica, place)
            self._commands.run(replica, replica.program.after)
        for replica in self._replicas.values():
            replica.runner.discard()  # gradients that no update took
            self._follower.end_step(replica, facts.step, place)
        self._local_steps.end_step(place, facts.step)
        self._commands.end_step()
        self._averager.begin_step(facts.step + 1)


def synchronized(
    setup: RunSetup,
    inbox: Inbox,
    outbox: Outbox,
    reports: tuple[Callable[[str], None], SpanRing, CodecGauge],
    scale: ReplicaScale,
) -> Synchronizer | None:
    """What carries out the strategy of ``setup``'s plan (``None``: it has none); the rest: see ``Synchronizer``."""
    return None if setup.plan.sync is None else Synchronizer(setup, inbox, outbox, reports, scale)


def _begin_again(replica: StageReplica, commands: CommandRunner, strategy: Strategy, steps: int) -> None:
    """Begin a strategy without a barrier anew, after ``steps`` steps, from its common model: other contributions arrive now."""
    commands.run(replica, strategy.end(steps, replica.world))  # exchanges nothing
    replica.registers.clear()
    commands.run(replica, strategy.init(replica.world))


def _parameter_bytes(setup: RunSetup, sync: SyncPlan) -> int:
    layers = [layer for layers in sync.layers for layer in layers]
    return sum(setup.graph.state[name].spec.nbytes for layer in layers for name in layer.parameters)
