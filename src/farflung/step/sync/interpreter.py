"""Replicas that agree by a sync strategy: carries out the commands of ``farflung.sync`` on an engine's tensors.

Source: the protocol of ``farflung.sync.commands``; ``farflung.testing.replicas`` is its specification. Parameters and gradients
stay in the engine; the other registers are arrays on the host. What only counts as a weighted mean is added up on the way
(``reduction.averaging``), parameters in place. Else, and with lossy codecs, which are applied to the own layers too so that all
count the same numbers, an exchange sends a member's layers to the other members of its group at once.

What differs from an ideal engine: lanes are ignored (a link carries frames in the order in which they were made).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from farflung.codecs import CODECS
from farflung.codecs.exchanged import shaped
from farflung.engines.base import Array, StageRunner
from farflung.errors import CodecError, WireError
from farflung.messages.arrays import decode_array, pack_arrays, pack_payloads, packed_arrays
from farflung.messages.fields import text, whole
from farflung.plan.synchronization import held_elsewhere, strategy_of, world_of
from farflung.step.inbox import Inbox
from farflung.step.reduction.averaging import Averager, Averaging, Outcome
from farflung.step.reduction.clipping import PreviousNorm
from farflung.step.reduction.piece_sender import PieceSender
from farflung.step.reduction.pieces import first_servers
from farflung.step.run_setup import RunSetup
from farflung.step.sync.layer_times import LayerTimes
from farflung.step.sync.local_step_counts import Paces
from farflung.step.sync.replica import Member, keep_variance, norm_of, ranges, rescale
from farflung.step.sync.replica_slots import Kept, kept_of, slots_of
from farflung.step.sync.seeded_directions import replayed
from farflung.step.transfer.codec_gauge import CodecGauge
from farflung.step.transfer.outbox import Outbox, OutgoingFrame
from farflung.sync import Sent, codec_name
from farflung.sync.commands import Aggregate, Axpy, Clip, Command, Damp, Exchange, Mean, Probe, Replay, Update
from farflung.sync.robust_rules import RULES
from farflung.sync.timeline import leaving, period_seconds
from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import Span, SpanRing
from farflung.transports.base import Urgency
from farflung.wire.arrays import ArrayMeta
from farflung.wire.frames import Frame

__all__ = ["Synchronizer", "synchronized"]

Arrays = list[Array]
#: What the tags of exchanges begin with that carry times of layers.
_TIMES = "times/"
#: What a checkpoint calls the norm by which the next step is clipped.
_PREVIOUS = "previous_norm"


class Synchronizer:
    """The strategy of a plan on one worker; ``runners``: of the own stages."""

    def __init__(
        self,
        setup: RunSetup,
        mailbox: Inbox,
        links: Outbox,
        tell: Callable[[str], None] = lambda text: None,
        trace: SpanRing | None = None,
        gauge: CodecGauge | None = None,
    ) -> None:
        """``tell``: takes lines for people. ``gauge``: what codecs cost and lose."""
        self._tell, self._trace, self._gauge = tell, trace or SpanRing(), gauge or CodecGauge()
        assert setup.plan.sync is not None
        self._setup, self._mailbox, self._links = setup, mailbox, links
        self.strategy = strategy_of(setup.plan)
        self._paces = Paces(setup, self.strategy.traits, mailbox, links)
        self._norm = PreviousNorm(setup, mailbox, links)
        self._members: dict[int, Member] = {}
        self._step = self._origin = setup.first_step
        self._rates: Sequence[float] = ()
        self._scale: Array | None = None
        sizes = [
            setup.graph.state[name].spec.nbytes
            for layers in setup.plan.sync.layers
            for layer in layers
            for name in layer.parameters
        ]
        self._sender = PieceSender(setup.run, links)
        groups = {index: setup.plan.stages[index].devices for index in setup.own_stages}
        self._averager = Averager(groups, sum(sizes), mailbox, self._sender)
        #: Largest relative distance of a member's parameters from the mean, in the last step that averaged some.
        self.divergence: float | None = None
        #: What each replica measured in this step, by rank, where the strategy exchanges that.
        self.slopes: Mapping[int, float] = {}

    # -- life ---------------------------------------------------------------------------------------------------------

    def open(self, runners: Mapping[int, StageRunner], step: int, slots: Mapping[str, Array] | None = None) -> None:
        """Before ``step``, the first one or that of a resumed run: all replicas hold the first one's states.

        ``slots``: what ``kept`` gave for a checkpoint. Without those of this replica the strategy counts steps from here: nothing
        that it would have begun before is under way.
        """
        plan, self._origin = self._setup.plan, step
        assert plan.sync is not None
        found, anew = slots or {}, False
        for stage, runner in runners.items():
            layers = tuple(layer.parameters for layer in plan.sync.layers[stage])
            if not layers:
                continue
            names = {name for layer in layers for name in layer}
            world = world_of(plan, self._setup.graph, self._setup.job, stage, self._setup.number)
            elsewhere = held_elsewhere(plan.sync, stage)
            mark = next((name for layer in layers for name in layer if name not in elsewhere), layers[0][0])
            member = self._members[stage] = Member(stage, world, layers, runner, mark)
            member.remembered.registers = member.registers
            member.first = first_servers([int(layer.nbytes) for layer in world.layers], world.members)
            if self.strategy.traits.layer_gain:
                member.times = LayerTimes(world)
            before = kept_of({key: value for key, value in found.items() if _of(key) in names}, world.members, world.rank)
            if before is None:
                self._all(member, self.strategy.init(world))
                anew = anew or step > 0
            else:
                self._go_on(member, before)
        if anew and self._setup.device == self._setup.leader and (self.drifts or self.strategy.traits.registers):
            what = f"what replicas hold of their own, and registers, were not kept by as many pipelines ({world.members})"
            self._tell(f"step {step}: {self.strategy.traits.name} begins anew from the first one's states: {what}")

    def _go_on(self, member: Member, kept: Kept) -> None:
        """Take up what a checkpoint holds of a replica."""
        self._origin = kept.origin
        kept.load(member.runner)
        if kept.times is not None and member.times is not None:
            member.world = member.world.with_times(kept.times)
        elif kept.times is not None:
            self._paces.go_on(kept.times)
            member.world = replace(member.world, local_steps=self._paces.steps)
        member.registers.update({register: dict(arrays) for register, arrays in kept.registers.items()})
        for tag in kept.values:
            member.remembered.begun(tag, self.strategy.traits.memory)
        for norm in member.registers.pop(_PREVIOUS, {}).values():
            self._norm.go_on(norm)
        for tag, means in kept.means.items():
            member.rounds[tag] = {name: array.reshape(-1) for name, array in means.items()}, False
            self._mailbox.put(("averaged", member.stage, tag), Outcome(gap=0.0, norm=0.0))
        devices = self._setup.plan.stages[member.stage].devices
        for tag, held in kept.values.items():
            for rank, arrays in held.items():
                self._mailbox.put(("sync", member.stage, tag, devices[rank]), list(arrays.values()))
            member.flying[tag] = list(next(iter(held.values()))), tuple(sorted(held))

    def kept(self) -> dict[str, Array]:
        """What the replicas here keep in a checkpoint, as optimizer slots; waits for exchanges that are under way.

        Raises:
            BaseException: what ended the run meanwhile.
        """
        alone = self.drifts
        self._averager.settle()
        found: dict[str, Array] = {}
        for member in self._members.values():
            names, world = member.names(member.world.every), member.world
            before = self._norm.kept
            more = {} if before is None else {_PREVIOUS: {member.mark: before}}
            kept = Kept(origin=self._origin, registers=member.registers | more)
            kept.times = self._paces.kept if member.times is None else world.times
            if alone and world.rank:
                kept.parameters = dict(member.runner.states(names, copy=False))
                kept.optimizer = dict(member.runner.optimizer_states(copy=False))
            specs = {name: self._setup.graph.state[name].spec.shape for name in names}
            for tag, (arrays, _) in member.rounds.items():
                kept.means[tag] = {name: array.reshape(specs[name]) for name, array in arrays.items()}
            for tag, (sent, group) in member.flying.items():
                kept.values[tag] = {rank: dict(zip(sent, self._seen(member, tag, rank), strict=True)) for rank in group}
            found |= slots_of(kept, world.members, world.rank, member.mark)
        return found

    def _seen(self, member: Member, tag: str, rank: int) -> Arrays:
        """What ``rank`` sent, which stays for whoever takes it."""
        key = ("sync", member.stage, tag, self._setup.plan.stages[member.stage].devices[rank])
        self._mailbox.wait_for(key, None)
        seen = self._mailbox.seen([key])
        assert seen is not None
        arrays: Arrays = seen[0]
        return arrays if tag.startswith(_TIMES) else self._parts(arrays, member.flying[tag][0])

    def begin(self, step: int, rates: Sequence[float]) -> None:
        """What each stage does in ``step``."""
        self._step, self._rates, self._scale, self.divergence = step, rates, None, None
        self._sender.begin_step(step)
        told = self._paces.begins(step - self._origin)
        if told is not None and self._setup.device == self._setup.leader:
            self._tell(f"step {step}: {told}")
        for member in self._members.values():
            if told is not None:
                member.world = replace(member.world, local_steps=self._paces.steps)
            member.program = self.strategy.step(step - self._origin, member.world)
            member.begun.clear()

    def taking(self, step: int) -> frozenset[int]:
        """The pipelines that take a local step in ``step``."""
        return self._paces.taking(step - self._origin)

    @property
    def probes(self) -> dict[int, tuple[Probe, tuple[str, ...]]]:
        """What each stage here measures in this step, and the parameters that are moved for it."""
        found = {}
        for member in self._members.values():
            for command in member.program.after:
                if isinstance(command, Probe):
                    found[member.stage] = command, tuple(member.names(command.layers))
        return found

    def watch(self, stage: int, runner: StageRunner) -> None:
        """Before the last backward of a step: layers that the strategy takes early are taken as their gradients get complete."""
        member = self._members.get(stage)
        if member is None or not member.program.ready:
            return
        layers = sorted(member.program.ready if member.times is None else member.world.every, reverse=True)
        groups = [self._needed(member, layer) for layer in layers]
        runner.watch(groups, lambda index: self._ready(member, layers[index]))
        if member.times is not None:
            member.times.begins()

    def watched(self, stage: int) -> None:
        """After that backward."""
        self._paces.backward_ends()
        member = self._members.get(stage)
        if member is not None and member.times is not None:
            member.times.ends()

    def _ready(self, member: Member, layer: int) -> None:
        at = 0.0 if member.times is None else member.times.now()
        if layer in member.program.ready:
            self._early(member, layer)
        if member.times is not None:
            member.times.ready(layer, at)

    def finish(self, scale: Array | None) -> None:
        """After all backwards: what is left of the step, update and means included."""
        self._scale = scale
        for member in self._members.values():
            for layer in sorted(member.program.ready, reverse=True):
                self._early(member, layer)
        for member in self._members.values():
            self._all(member, member.program.after)
        for member in self._members.values():
            member.runner.discard()  # gradients that no update took
            if member.times is not None:
                self._adapt(member, member.times)
        self._paces.step_over(self._step - self._origin, self._step)
        self._norm.step_over(self._step)
        self._sender.begin_step(self._step + 1)

    def _adapt(self, member: Member, times: LayerTimes) -> None:
        """At a period's end tell the others what layers took in it, and follow what all told at the end of the one before."""
        strategy = self.strategy
        times.step_over()
        if (self._step + 1 - self._origin) % strategy.traits.sync_every:
            return
        devices = self._setup.plan.stages[member.stage].devices
        for tag in [tag for tag in member.flying if tag.startswith(_TIMES)]:
            del member.flying[tag]
            told = [self._mailbox.take(("sync", member.stage, tag, device)) for device in devices]
            world = strategy.follow(member.world, [np.concatenate([array.reshape(-1) for array in arrays]) for arrays in told])
            if world != member.world:
                member.world = world
                if world.rank == 0:
                    sets = "; ".join(", ".join(map(str, layers)) for layers in leaving(strategy, world))
                    seconds = period_seconds(strategy, world)
                    text = f"step {self._step + 1}: measured times ask for other sets of layers in stage {member.stage}: {sets}"
                    self._tell(f"{text}; the backwards of a period take {seconds}")
        tag = f"{_TIMES}{self._step}"
        member.flying[tag] = [member.mark], member.world.group
        self._share(member, tag, member.world.group, [times.take()])

    @property
    def drifts(self) -> bool:
        """Whether replicas hold parameters of their own between exchanges."""
        return self.strategy.traits.drifts

    def agree(self, tag: str) -> None:
        """At the end of training: the mean of what the replicas hold becomes everybody's parameters."""
        if not self.drifts:
            return
        pairs = []
        for member in self._members.values():
            every, group, weights = member.world.every, member.world.group, member.world.weights
            send = Exchange(tag=tag, source="parameters", layers=every, group=group, weights=weights)
            pairs.append((member, send, Mean(tag=tag, into="parameters", layers=every, group=group, weights=weights)))
        for member, send, _ in pairs:
            self._do(member, send)
        for member, _, mean in pairs:
            self._do(member, mean)

    def _needed(self, member: Member, layer: int) -> frozenset[str]:
        """The parameters whose gradients the commands of ``layer`` use."""
        layers = {layer}
        for command in member.program.ready.get(layer, ()):
            layers |= set(command.layers)
        return frozenset(member.names(sorted(layers)))

    def _early(self, member: Member, layer: int) -> None:
        if layer not in member.begun:
            member.begun.add(layer)
            self._all(member, member.program.ready[layer])

    # -- commands -----------------------------------------------------------------------------------------------------

    def _all(self, member: Member, commands: Sequence[Command]) -> None:
        for command in commands:
            self._do(member, command)

    def _do(self, member: Member, command: Command) -> None:
        names = member.names(command.layers)
        match command:
            case Update():
                self._update(member, names)
            case Axpy():
                self._axpy(member, command, names)
            case Exchange():
                self._exchange(member, command, names)
            case Mean():
                self._mean(member, command, names)
            case Aggregate():
                self._aggregate(member, command, names)
            case Clip() | Damp():
                rescale(member, command, names)
            case Replay():
                member.write("gradient", replayed(command, self.slopes, member.read("parameters", names)))
            case Probe():
                pass  # measured and sent before the verdict on the step

    def _update(self, member: Member, names: Sequence[str]) -> None:
        scale = self._scale
        if self._norm.wanted:
            self._norm.note(member.stage, member.runner.gradient_views(names))
            scale = self._norm.scale()
        member.runner.update(self._rates, scale, names)

    def _axpy(self, member: Member, command: Axpy, names: Sequence[str]) -> None:
        x = member.read(command.x, names)
        y = member.read(command.into, names) if command.b else {}
        found = {}
        for name, array in x.items():
            value = np.multiply(array, array.dtype.type(command.a))
            if command.b:
                value += y[name] if command.b == 1.0 else y[name] * array.dtype.type(command.b)
            found[name] = value
        member.write(command.into, found)

    def _mean(self, member: Member, command: Mean, names: Sequence[str]) -> None:
        if command.tag in member.rounds:
            self._averaged(member, command)
            return
        arrived = self._arrived(member, command, names)
        own = {name: np.array(a) for name, a in member.read("parameters", names).items()} if command.into == "parameters" else {}
        sums: dict[str, Array] = {}
        for weight, values in zip(command.weights, arrived, strict=True):
            for name, array in values.items():
                part = array * array.dtype.type(weight)
                sums[name] = part if name not in sums else np.add(sums[name], part, out=sums[name])
        if command.keep_variance:
            for layer in command.layers:
                keep_variance(sums, member.layers[layer], arrived, command.weights)
        if self.strategy.traits.sent is Sent.PSEUDO_GRADIENTS:
            own = arrived[command.group.index(member.world.rank)]
        if own:
            self._apart(member, names, norm_of({name: sums[name] - own[name] for name in own}), None)
        member.write(command.into, sums)

    def _average(self, member: Member, command: Exchange, names: Sequence[str]) -> None:
        """Begin a mean that is added up on the way: of parameters in the engine's memory, of anything else in a copy."""
        shapes = {name: self._setup.graph.state[name].spec.shape for name in names}
        arrays = dict(member.runner.exposed(names)) if command.source == "parameters" else {}
        here = len(arrays) == len(names)
        if not here:
            values = member.read(command.source, names)
            arrays = {name: np.array(values[name]).reshape(-1) for name in shapes}
        member.rounds[command.tag] = arrays, here
        self._averager.contribute(
            Averaging(
                stage=member.stage,
                tag=command.tag,
                rank=member.world.rank,
                devices=self._setup.plan.stages[member.stage].devices,
                weights=command.weights,
                arrays=tuple(arrays[name] for name in names),
                first=member.first[min(command.layers)],
                patience=self._setup.job.sync.patience or None,
                quorum=self._setup.job.sync.quorum,
            )
        )

    def _averaged(self, member: Member, command: Mean) -> None:
        """Wait for the mean, and put it where it belongs."""
        outcome = self._averager.wait(member.stage, command.tag)
        arrays, here = member.rounds.pop(command.tag)
        self._note(member, command, sum(array.nbytes for array in arrays.values()), outcome.end - outcome.begin)
        if member.times is not None:
            member.times.exchanged(sum(array.nbytes for array in arrays.values()), outcome.begin, outcome.end)
        if outcome.missing and member.world.rank == min(set(command.group) - outcome.missing, default=-1):
            devices = self._setup.plan.stages[member.stage].devices
            names = ", ".join(devices[rank] for rank in sorted(outcome.missing))
            self._tell(f"step {self._step}: an exchange of stage {member.stage} ended without {names}; the others' weights grew")
        if self.drifts:
            whole = float(np.sqrt(outcome.norm)) if command.into == "parameters" else None
            self._apart(member, list(arrays), float(np.sqrt(outcome.gap)), whole)
        if not (here and command.into == "parameters"):
            shapes = {name: self._setup.graph.state[name].spec.shape for name in arrays}
            member.write(command.into, {name: array.reshape(shapes[name]) for name, array in arrays.items()})

    def _apart(self, member: Member, names: Sequence[str], gap: float, norm: float | None) -> None:
        """The own values of ``names``, or what moved them, were ``gap`` from the mean; ``norm``: of the values, if known."""
        norm = norm_of(member.read("parameters", names)) if norm is None else norm
        self.divergence = max(gap / max(norm, 1e-30), self.divergence or 0.0)

    def _aggregate(self, member: Member, command: Aggregate, names: Sequence[str]) -> None:
        held = list(self._arrived(member, command, names))
        stacked = np.stack([np.concatenate([values[name].reshape(-1) for name in names]) for values in held])
        merged = RULES[command.rule](stacked, command.faulty)
        found, at = {}, 0
        for name in names:
            like = held[0][name]
            found[name] = merged[at : at + like.size].reshape(like.shape).astype(like.dtype)
            at += like.size
        member.write(command.into, found)

    # -- the network --------------------------------------------------------------------------------------------------

    def _exchange(self, member: Member, command: Exchange, names: Sequence[str]) -> None:
        """Encoded once, here: all members, this one too, count what the frame holds, whatever is written afterwards."""
        member.since[command.tag] = self._trace.now()
        if command.codec == "identity" and command.weights:
            self._average(member, command, names)
            return
        values = member.read(command.source, names)
        live = command.source in ("parameters", "gradient")  # codecs, too, may hand out what they were given
        arrays = [np.array(values[name]) if live else np.ascontiguousarray(values[name]) for name in names]
        member.flying[command.tag] = list(names), command.group
        self._share(member, command.tag, command.group, arrays, command)

    def _share(self, member: Member, tag: str, group: Sequence[int], arrays: Arrays, coded: Exchange | None = None) -> None:
        """Send ``arrays`` to the others of ``group``, and put what they will read where theirs will come."""
        devices = self._setup.plan.stages[member.stage].devices
        head = {"run": self._setup.run, "stage": member.stage, "tag": tag}
        dense, pair = sum(array.nbytes for array in arrays), (member.stage, member.stage)
        if coded is None or coded.codec == "identity":
            frame, own = pack_arrays("sync", head, arrays, None), arrays
        else:
            named = dict(zip(member.names(coded.layers), arrays, strict=True))
            key = self._setup.job.seed, tag, member.stage, member.world.rank
            what = f"can't encode what replica {member.world.rank} of stage {member.stage} exchanges ({tag})"
            with CODECS.blame(codec_name(coded.codec), what, CodecError):
                payloads = self._gauge.encode(self._step, pair, lambda: member.remembered.encode(coded, named, *key))
            frame = pack_payloads("sync", head, payloads)
            own = self._gauge.decode(self._step, pair, lambda: _unpack(frame, [dense] * len(payloads)))
            self._gauge.compare(self._step, pair, arrays, lambda: _arriving(member, tag, named, own))
        self._mailbox.put(("sync", member.stage, tag, self._setup.device), own)
        for rank in group:
            if devices[rank] != self._setup.device:
                parcel = OutgoingFrame(
                    make=lambda: frame, urgency=Urgency.BULK, step=self._step, pair=pair, dense=dense, waits=False
                )
                self._links.post(devices[rank], parcel)

    def _arrived(self, member: Member, command: Mean | Aggregate, names: Sequence[str]) -> list[dict[str, Array]]:
        devices = self._setup.plan.stages[member.stage].devices
        member.flying.pop(command.tag, None)
        found = []
        for rank in command.group:
            arrays = self._parts(self._mailbox.take(("sync", member.stage, command.tag, devices[rank])), names)
            if len(arrays) != len(names):
                raise WireError(
                    f"{devices[rank]} sent {len(arrays)} arrays for {len(names)} parameters of exchange {command.tag!r}"
                )
            for name, array in zip(names, arrays, strict=True):
                spec = self._setup.graph.state[name].spec
                if array.shape != spec.shape:
                    raise WireError(f"{devices[rank]} sent {list(array.shape)} for {name!r}, which is {list(spec.shape)}")
            found.append(dict(member.remembered.arrived(command.tag, rank, dict(zip(names, arrays, strict=True)))))
        member.remembered.done(command.tag)
        self._note(member, command, sum(array.nbytes for array in found[0].values()), None)
        return found

    def _note(self, member: Member, command: Mean | Aggregate, nbytes: int, seconds: float | None) -> None:
        """Put an exchange on the trace; ``seconds``: how long it took (None: until now)."""
        begin = member.since.pop(command.tag, None)
        if begin is not None:  # it began in this attempt
            took = self._trace.now() - begin if seconds is None else seconds
            span = Span(
                what=SpanKind.EXCHANGE,
                name=f"layers {ranges(command.layers)}",
                start=begin,
                seconds=max(took, 0.0),
                stage=member.stage,
                step=self._step,
                nbytes=nbytes,
            )
            self._trace.add(span)

    def _parts(self, arrays: Arrays, names: Sequence[str]) -> Arrays:
        """``arrays`` parameter by parameter: sparse codecs send them as one."""
        if len(arrays) != 1:
            return arrays
        specs = [self._setup.graph.state[name].spec for name in names]
        return shaped(arrays, [np.broadcast_to(np.empty(1, np.float32), spec.shape) for spec in specs])

    def receive(self, peer: str, frame: Frame) -> None:
        """A member's layers came from ``peer`` (transport thread).

        Raises:
            WireError: it is no member, or its arrays are larger than the stage's parameters.
            CodecError: a payload is malformed.
        """
        header = frame.header
        if frame.kind in ("pace", "norm"):
            (self._paces if frame.kind == "pace" else self._norm).receive(peer, frame)
            return
        stage, stages = whole(header, "stage"), self._setup.plan.stages
        if stage not in self._setup.own_stages or peer not in stages[stage].devices:
            raise WireError(f"{peer} is no replica of stage {stage}, of which one is here")
        assert self._setup.plan.sync is not None
        if frame.kind == "pieces":
            self._averager.receive(peer, frame)
            return
        names = [name for layer in self._setup.plan.sync.layers[stage] for name in layer.parameters]
        least = 8 * len(self._setup.plan.sync.layers[stage])  # times of layers are that large
        limits = [max(self._setup.graph.state[name].spec.nbytes, least) for name in names]
        key = "sync", stage, text(header, "tag", limit=60), peer
        coded = _coded(frame)
        pair = stage, stage
        arrays = self._gauge.decode(self._step, pair, lambda: _unpack(frame, limits)) if coded else _unpack(frame, limits)
        self._mailbox.put(key, arrays)


def synchronized(
    setup: RunSetup, mailbox: Inbox, links: Outbox, told: tuple[Callable[[str], None], SpanRing, CodecGauge]
) -> Synchronizer | None:
    """What carries out the strategy of ``setup``'s plan (None: it has none); ``told``: ``tell``, ``trace`` and ``gauge``."""
    return None if setup.plan.sync is None else Synchronizer(setup, mailbox, links, *told)


def _of(slot: str) -> str:
    return slot.partition("/")[2]


def _coded(frame: Frame) -> bool:
    """Whether any array of it came through a codec."""
    headers = frame.header.get("arrays")
    return isinstance(headers, list) and any(isinstance(header, dict) and "payload" in header for header in headers)


def _arriving(member: Member, tag: str, named: Mapping[str, Array], own: Arrays) -> Arrays:
    """What the others will have of ``named``, which ``member`` encodes and decodes as ``own``."""
    parts = dict(zip(named, shaped(own, named.values()), strict=True))
    return list(member.remembered.arrives(tag, parts).values())


def _unpack(frame: Frame, limits: Sequence[int]) -> Arrays:
    """Sizes are checked before memory is taken: not more arrays, and none larger, than the stage has parameters."""
    arrays = [array for array in packed_arrays(frame, len(limits)) if array is not None]
    if sum(ArrayMeta.from_header(header.get("array")).memory_nbytes for header, _ in arrays) > sum(limits):
        raise WireError(f"an exchange has at most {sum(limits)} bytes")
    largest = sum(limits)  # sparse codecs send all as one
    return [decode_array(header, sections, largest) for header, sections in arrays]
