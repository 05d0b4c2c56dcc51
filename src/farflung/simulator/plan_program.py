"""From a plan to a program: the estimate's seconds and bytes of memory, frames per value, the tail of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farflung.cluster import Topology
from farflung.cost import ALLOCATOR
from farflung.graph.cut import Edge, SubGraph
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import CodecChoice, Estimate, Plan
from farflung.plan.traffic import wire_bytes
from farflung.schedules import ACTION_SECONDS, as_ready, get_schedule, part_of, splits, tracks_of, transfer_work
from farflung.simulator.program import Gate, Message, Program, ProgramAction, ProgramLink
from farflung.simulator.settings import SimulationSettings

__all__ = ["Situation", "allocated", "lower"]

_RANK = {"B": 0, "F": 1, "W": 2}
#: Bytes of one parameter's norm in its message.
_NORM = 40.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Situation:
    """What is simulated: a plan with its graph, cut, topology, job and estimate."""

    graph: Graph
    plan: Plan
    topology: Topology
    job: JobSpec
    pieces: Sequence[SubGraph]
    estimate: Estimate


def lower(situation: Situation, settings: SimulationSettings) -> Program:
    """The program of one step of ``situation.plan``."""
    return _Lowering(situation, settings).program()


class _Lowering:
    """``units``: the copies of all stages (``Estimate.replicas``), each with the device that holds it."""

    def __init__(self, situation: Situation, settings: SimulationSettings) -> None:
        self.at, self.settings = situation, settings
        plan, topology = situation.plan, situation.topology
        self.devices = plan.devices
        self.index = {name: i for i, name in enumerate(plan.devices)}
        self.units = situation.estimate.replicas
        self.device_of = [self.index[unit.device] for unit in self.units]
        self.copies: dict[int, list[int]] = {}
        for number, unit in enumerate(self.units):
            self.copies.setdefault(unit.index, []).append(number)
        self.rows = [topology.index(name) for name in plan.devices]
        largest = max(plan.micro_batch_sizes)
        self.scale = [size / largest for size in plan.micro_batch_sizes]
        #: the largest micro-batch, of the samples that the graph was captured for
        self.part = largest / max(situation.job.micro_batch_sizes)
        self.actions: list[ProgramAction] = []
        #: (stage, kind, micro-batch) -> action
        self.number: dict[tuple[int, str, int], int] = {}
        self.links: dict[tuple[int, int], int] = {}
        #: devices on hosts whose cores they share
        self.sharing = {device for _, own in self._hosts() for device in own}

    def program(self) -> Program:
        """Actions first, then what flows between them, then the tail."""
        plan = self.at.plan
        tracks, gates = self._tracks()
        self._flows()
        tail = self._tail()
        return Program(
            devices=self.devices,
            actions=tuple(self.actions),
            tracks=tuple(tuple(track) for track in tracks),
            gates=tuple(tuple(gate) for gate in gates),
            tail=tail,
            links=tuple(self._link(*pair) for pair in self.links),
            samples=sum(plan.micro_batch_sizes),
            caps=self._caps(),
            hosts=self._hosts(),
            **self._memory(),
        )

    def _tracks(self) -> tuple[list[list[tuple[int, ...]]], list[list[Gate]]]:
        plan = self.at.plan
        free = as_ready(get_schedule(plan.schedule))
        tracks: list[list[tuple[int, ...]]] = [[] for _ in self.devices]
        gates: list[list[Gate]] = [[] for _ in self.devices]
        for number, unit in enumerate(self.units):
            order = part_of(plan.schedule, len(plan.stages), len(plan.micro_batch_sizes), unit.index, unit.micro_batches).actions
            split, device = splits(order), self.device_of[number]
            numbers = {action: self._action(number, str(action.kind), action.micro_batch, split) for action in order}
            found, first = tracks_of(order, free=free), len(tracks[device])
            for index, track in enumerate(found):
                gates[device].append((first + 1 - index, track.lead) if len(found) == 2 else None)
                tracks[device].append(tuple(numbers[action] for action in track.actions))
        return tracks, gates

    def _action(self, number: int, kind: str, micro_batch: int, split: bool) -> int:
        found = self.units[number]
        scale = self.scale[micro_batch]
        taken = self.at.plan.steps_taken(found.index, found.device)  # on average over a period
        weight = found.weight_seconds if split else 0.0
        seconds = {"F": found.forward_seconds, "B": found.backward_seconds - weight, "W": weight}[kind] * scale * taken
        seconds += ACTION_SECONDS if self.device_of[number] in self.sharing else 0.0
        before, after = self._kept(number)
        action = ProgramAction(
            device=self.device_of[number], stage=found.index, kind=kind, micro_batch=micro_batch, seconds=seconds
        )
        action.rank = _RANK[kind] * len(self.at.plan.stages) + found.index
        if kind == "F":
            action.takes = scale * before
        elif kind == "B":
            action.takes = scale * after
        if kind == ("W" if split else "B"):
            action.gives = scale * (before + after)
        self.number[found.index, kind, micro_batch] = len(self.actions)
        return self._add(action)

    def _add(self, action: ProgramAction) -> int:
        self.actions.append(action)
        return len(self.actions) - 1

    def _kept(self, number: int) -> tuple[float, float]:
        """Bytes that a micro-batch takes at its forward, and those that come on top at its backward (recomputation)."""
        found = self.units[number]
        activations = found.memory["activations"]
        if not found.recompute:
            return activations / found.in_flight, 0.0
        received = self.part * float(sum(edge.forward_bytes for edge in self.at.pieces[found.index].requires_activations))
        return received, activations - found.in_flight * received

    def _memory(self) -> Mapping[str, tuple[float, ...]]:
        always, passing, update = ([0.0] * len(self.devices) for _ in range(3))
        for found in self.units:
            device, parts = self.index[found.device], found.memory
            always[device] += parts["parameters"] + parts["gradients"] + parts["optimizer"] + parts.get("exchange", 0.0)
            passing[device] += parts["workspace"] + parts["messages"]
            update[device] += parts["update"]
        return {"always": tuple(always), "passing": tuple(passing), "update": tuple(update)}

    def _link(self, source: int, target: int) -> ProgramLink:
        topology, i, j = self.at.topology, self.rows[source], self.rows[target]
        return ProgramLink(
            source=source,
            target=target,
            latency=float(topology.alpha[i, j]),
            bandwidth=float(topology.beta[i, j]),
            latency_back=float(topology.alpha[j, i]),
        )

    def _caps(self) -> tuple[tuple[float, tuple[int, ...]], ...]:
        """What several links of the plan share: the devices' up- and down-links by their own words, and hops through relays."""
        topology = self.at.topology
        ups: dict[str, list[int]] = {}
        downs: dict[str, list[int]] = {}
        hops: dict[tuple[str, str], list[int]] = {}
        relayed: set[tuple[str, str]] = set()
        for (i, j), link in self.links.items():
            a, b = self.devices[i], self.devices[j]
            relay = topology.relay(a, b)
            for hop in ((a, relay), (relay, b)) if relay in topology.names else ((a, b),):
                hops.setdefault(hop, []).append(link)
                ups.setdefault(hop[0], []).append(link)
                downs.setdefault(hop[1], []).append(link)
                relayed |= {hop} if relay else set()
        found = [
            (float(rate), tuple(members))
            for name in topology.names
            for rate, members in (
                (topology.device(name).uplink, ups.get(name, ())),
                (topology.device(name).downlink, downs.get(name, ())),
            )
            if rate is not None and len(members) > 1
        ]
        shared = [hop for hop, members in hops.items() if hop in relayed and len(members) > 1]
        return (*found, *((float(topology.link(*hop).bandwidth), tuple(hops[hop])) for hop in shared))

    def _hosts(self) -> tuple[tuple[float, tuple[int, ...]], ...]:
        """The hosts whose cores several devices of the plan share."""
        place = {row: index for index, row in enumerate(self.rows)}
        found = ((capacity, tuple(place[i] for i in own if i in place)) for capacity, own in self.at.topology.hosts)
        return tuple((capacity, own) for capacity, own in found if len(own) > capacity)

    def _flows(self) -> None:
        """Each value forward and each gradient back is a frame per micro-batch (nothing to send: nothing to wait for)."""
        for piece in self.at.pieces:
            for edge in piece.gives:
                self._flow(edge, "F")
            for edge in piece.sends_gradients:
                self._flow(edge, "B")

    def _flow(self, edge: Edge, kind: str) -> None:
        source, target = (edge.source, edge.target) if kind == "F" else (edge.target, edge.source)
        link = self.at.plan.link[edge.source, edge.target]
        choice = link.activations if kind == "F" else link.gradients
        size = wire_bytes(choice, edge.spec)
        for micro_batch, scale in enumerate(factor * self.part for factor in self.scale):
            reader = self.number[target, kind, micro_batch]
            action = self.actions[self.number[source, kind, micro_batch]]
            pair = (action.device, self.actions[reader].device)
            self.actions[reader].needed += 1
            if pair[0] == pair[1]:
                action.local.append(reader)
            else:
                action.sends.append(self._message(pair, reader, (edge.spec.nbytes * scale, size * scale), choice))
                self._transfer_work((action, self.actions[reader]), size * scale)

    def _transfer_work(self, ends: tuple[ProgramAction, ProgramAction], nbytes: float) -> None:
        """On shared cores, sending and receiving count as work of the actions at both ends (``schedules.shared_host``)."""
        for action in ends:
            if action.device in self.sharing:
                action.seconds += transfer_work(nbytes)

    def _message(self, pair: tuple[int, int], reader: int, size: tuple[float, float], choice: CodecChoice) -> Message:
        """``size``: bytes before and after the codec."""
        speed = self.settings.codec(choice.name)
        number = self.links.setdefault(pair, len(self.links))
        return (number, reader, size[1] + self.settings.frame_bytes, size[0] / speed.encode, size[0] / speed.decode)

    def _tail(self) -> tuple[tuple[int, ...], ...]:
        """After the last action each device exchanges gradients, in rounds, then norms where the job clips, then it updates."""
        at = self.at
        clips = at.job.optimizer.clip_norm is not None or at.job.on_nan != "stop" or at.job.precision == "fp16"
        rounds = sorted({exchange.round for exchange in at.estimate.exchanges})
        kinds = ("X",) * len(rounds) + (("N",) if clips else ()) + ("U",)
        tail: list[tuple[int, ...]] = []
        for device in range(len(self.devices)):
            own = [unit for unit in self.units if self.index[unit.device] == device]
            update = sum(at.plan.steps_taken(unit.index, unit.device) * unit.update_seconds for unit in own)
            tail.append(tuple(self._tail_action(device, kind, update if kind == "U" else 0.0) for kind in kinds))
        self._verdict(tail)
        for exchange in at.estimate.exchanges:
            here, there = self.device_of[exchange.source], self.device_of[exchange.target]
            place, unit = rounds.index(exchange.round), self.units[exchange.source]
            makers = [self._maker(unit.index, micro_batch) for micro_batch in exchange.after] or [tail[here][place]]
            if here != there:
                for maker in makers:
                    self._connect(maker, tail[there][place + 1], exchange.nbytes - exchange.hidden)
            if exchange.hidden and here != there:  # under way while the source computes
                first = self.number[unit.index, "F", unit.micro_batches[0]]
                self._connect(first, tail[there][place + 1], exchange.hidden)
        if clips:
            for here in range(len(self.devices)):
                for there in range(len(self.devices)):
                    if here != there:
                        self._connect(tail[here][-2], tail[there][-1], self._norms(here))
        return tuple(tail)

    def _maker(self, stage: int, micro_batch: int) -> int:
        """The action that makes a micro-batch's gradients of parameters: its W, or its B where that is not split."""
        return self.number.get((stage, "W", micro_batch), self.number[stage, "B", micro_batch])

    def _verdict(self, tail: Sequence[Sequence[int]]) -> None:
        """Where the last loss is computed, all are told whether to apply the step (one hop, also where a replica does it)."""
        position = self.at.graph.position[self.at.graph.result.op]
        home = next(stage.index for stage in self.at.plan.stages if stage.start <= position < stage.stop)
        last = self.number[home, "F", len(self.scale) - 1]
        for device in range(len(self.devices)):
            if device != self.actions[last].device:
                self._connect(last, tail[device][-1], 0.0)

    def _norms(self, device: int) -> float:
        return _NORM * sum(len(self.at.pieces[unit.index].states) for unit in self.units if self.index[unit.device] == device)

    def _tail_action(self, device: int, kind: str, seconds: float) -> int:
        return self._add(ProgramAction(device=device, stage=-1 - device, kind=kind, micro_batch=-1, seconds=seconds))

    def _connect(self, sender: int, reader: int, size: float) -> None:
        """A frame without a codec from one action to another."""
        pair = (self.actions[sender].device, self.actions[reader].device)
        self.actions[reader].needed += 1
        self.actions[sender].sends.append(self._message(pair, reader, (size, size), CodecChoice()))


def allocated(program: Program, device: int, peak: float) -> float:
    """Bytes of device ``device`` when ``peak`` of what comes and goes is alive at once, with what the allocator keeps."""
    return program.always[device] + ALLOCATOR * max(peak + program.passing[device], program.update[device])
