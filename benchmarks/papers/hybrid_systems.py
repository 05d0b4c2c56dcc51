"""Batches of five systems under losses of devices, in virtual time: ours, SWARM, DAPPLE, PipeDream and DeDLOC.

All systems compute the same work. ``ours`` runs the plan of Hybrid-PS on the runtime's task pools, with the schedule ``gpipe``:
each server has a run of mini-batches, and a window of few of them would leave servers of the next stage idle. The others are
models:

- ``dapple``: a synchronous 1F1B pipeline of all devices, each with work in proportion to its speed. At the first loss, the batch
  begins again with all devices.
- ``pipedream``: the same without the flush at the end of a batch, so a batch takes the slowest stage's or link's time.
- ``swarm``: the stages of ours, as in the paper. What a lost device has computed in the batch is computed again by its stage,
  whose devices share all work evenly.
- ``dedloc``: each device computes whole samples with the whole model, for which its memory is not counted. What a lost device has
  computed is computed again by all others. Then each device reduces a part of the gradients, and all links carry at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from farflung.cluster import Topology
from farflung.planners.hybrid_ps import HybridPsPlan, HybridPsStage, HybridPsWork, plan_hybrid_ps
from farflung.protocol.pool.pool_state import shares_of
from farflung.simulator.hybrid import HelpedPipeline, HelpedServer, Helper, Loss, hop_between, wire_between

__all__ = ["SYSTEMS", "Batches"]

#: A backward takes twice as long as a forward.
_FORWARD = 1.0 / 3.0
_WARM = 1


@dataclass(frozen=True, kw_only=True)
class Batches:
    """``work`` on ``topology``. In a batch, each unreliable device is lost with ``chance``; means are of ``count`` batches.

    ``gradients``: bytes of the model's gradients.
    """

    topology: Topology
    work: HybridPsWork
    chance: float = 0.0
    count: int = 6
    seed: int = 0
    gradients: float = 0.0

    def ours(self) -> float:
        """The mean seconds of a batch of the hybrid plan."""
        plan = plan_hybrid_ps(self.topology, self.work)
        length = self._calm(plan)
        if not self.chance:
            return length
        clients = [self.topology.names[i] for stage in plan.stages for i in stage.clients]
        losses = [[Loss(helper=name, after=at) for name, at in drawn.items()] for drawn in self._drawn(clients, length)]
        return fmean(self._pipeline(plan).run([*[()] * _WARM, *losses])[_WARM:])

    def swarm(self) -> float:
        """The mean seconds of a batch where the stage of a lost device repeats what the device had computed."""
        plan = plan_hybrid_ps(self.topology, self.work)
        length, speeds = self._calm(plan), self.topology.speeds
        stages = {self.topology.names[i]: stage for stage in plan.stages for i in stage.clients}
        seconds = []
        for drawn in self._drawn(list(stages), length):
            lost = dict.fromkeys(range(len(plan.stages)), 0.0)
            for name in drawn:
                stage = stages[name]
                members = [*stage.servers, *stage.clients]
                lost[plan.stages.index(stage)] += float(speeds[self.topology.index(name)] / speeds[members].sum())
            # the rest of a lost device's batch goes to the others of its stage, and so does what it had computed
            seconds.append(length * max(1.0 / (1.0 - share) for share in lost.values()))
        return fmean(seconds)

    def dapple(self) -> float:
        """The mean seconds of a batch of a synchronous pipeline that begins again at the first loss."""
        return self._restarted(self._chain())

    def pipedream(self) -> float:
        """As ``dapple`` without the flush at the end of a batch."""
        speeds = self.topology.speeds
        stage = self.work.flops / self.work.mini_batches / float(speeds.sum())
        hop = max(
            self.work.message * max(wire_between(self.topology, *pair).per_byte for pair in ((a, b), (b, a)))
            for a, b in pairwise(self.topology.names)
        )
        return self._restarted(self.work.mini_batches * max(stage, hop))

    def dedloc(self) -> float:
        """The mean seconds of a batch of whole replicas."""
        speeds, count = self.topology.speeds, len(self.topology)
        compute, total = self.work.flops / float(speeds.sum()), float(speeds.sum())
        links = self.topology.alpha + self.gradients / count / self.topology.beta
        unreliable = [device.name for device in self.topology.devices if not device.reliable]
        lost = [sum(float(speeds[self.topology.index(name)]) for name in drawn) for drawn in self._drawn(unreliable, compute)]
        return fmean(compute / (1.0 - one / total) for one in lost) + 2.0 * float(links.max())

    # -- pipelines ----------------------------------------------------------------------------------------------------

    def _drawn(self, names: Sequence[str], length: float) -> list[dict[str, float]]:
        """Which devices are lost in each batch, and when."""
        draw = random.Random(self.seed)
        return [{name: draw.uniform(0.0, length) for name in names if draw.random() < self.chance} for _ in range(self.count)]

    def _restarted(self, length: float) -> float:
        unreliable = [device.name for device in self.topology.devices if not device.reliable]
        return fmean(length + min(drawn.values(), default=0.0) for drawn in self._drawn(unreliable, length))

    def _calm(self, plan: HybridPsPlan) -> float:
        return self._pipeline(plan).run([()] * (_WARM + 1))[-1]

    def _chain(self) -> float:
        """A batch of a pipeline of all devices, each of which is a stage."""
        work, names, total = self.work, self.topology.names, float(self.topology.speeds.sum())
        seconds = work.flops / work.mini_batches / total
        servers = [
            HelpedServer(
                name=name,
                stage=place,
                slices=tuple(range(work.mini_batches)),
                forward=_FORWARD * seconds,
                backward=(1.0 - _FORWARD) * seconds,
                input=work.message,
                output=work.message,
                room=len(names) - place,
            )
            for place, name in enumerate(names)
        ]
        hops = [hop_between(self.topology, a, b) for a, b in pairwise(names)]
        return HelpedPipeline(servers, hops=hops).run([()])[0]

    def _pipeline(self, plan: HybridPsPlan) -> HelpedPipeline:
        servers: list[HelpedServer] = []
        helpers: list[Helper] = []
        for place, stage in enumerate(plan.stages):
            own, helping = self._stage(place, stage)
            servers += own
            helpers += helping
        hops = [hop_between(self.topology, a.name, b.name) for a in servers for b in servers if b.stage == a.stage + 1]
        return HelpedPipeline(servers, helpers, hops)

    def _stage(self, place: int, stage: HybridPsStage) -> tuple[list[HelpedServer], list[Helper]]:
        work, topology, speeds = self.work, self.topology, self.topology.speeds
        helping: dict[int, list[int]] = {server: [] for server in stage.servers}
        for client in stage.clients:  # the fewest clients first, then the fastest link
            helping[min(helping, key=lambda s: (len(helping[s]), -topology.beta[s, client]))].append(client)
        powers = [float(speeds[[server, *clients]].sum()) for server, clients in helping.items()]
        at, servers = 0, []
        for (server, _), count in zip(helping.items(), shares_of(powers, work.mini_batches), strict=True):
            seconds = work.flops / work.mini_batches * stage.layers / work.layers / float(speeds[server])
            found = HelpedServer(
                name=topology.names[server],
                stage=place,
                slices=tuple(range(at, at + count)),
                forward=_FORWARD * seconds,
                backward=(1.0 - _FORWARD) * seconds,
                input=work.message,
                output=work.message,
                room=work.mini_batches,
                helper_room=max(2, work.mini_batches // len(stage.servers)),
            )
            at += count
            servers.append(found)
        return servers, [
            Helper(
                name=topology.names[client],
                server=topology.names[server],
                speed=float(speeds[client] / speeds[server]),
                down=wire_between(topology, topology.names[server], topology.names[client]),
                up=wire_between(topology, topology.names[client], topology.names[server]),
            )
            for server, clients in helping.items()
            for client in clients
        ]


#: Seconds of a batch by system.
SYSTEMS: Mapping[str, Callable[[Batches], float]] = {
    "ours": Batches.ours,
    "pipedream": Batches.pipedream,
    "dapple": Batches.dapple,
    "swarm": Batches.swarm,
    "dedloc": Batches.dedloc,
}
