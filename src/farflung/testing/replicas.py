"""Replicas in one process, in NumPy: the specification of what the commands of ``farflung.sync`` do.

All replicas of a group take a step together: gradients first, then each replica's commands until all are done. A ``Mean``
waits for what the others have yet to send; if all wait, the strategy has a dead end and ``run`` raises. An engine that carries
out the same commands on its own tensors must give the same parameters, to rounding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from farflung.codecs import decode_payload
from farflung.codecs.exchanged import Remembered, shaped
from farflung.codecs.keys import derive, signs
from farflung.job.spec import OptimizerSpec
from farflung.sync import Strategy, World, renormalized
from farflung.sync.commands import Aggregate, Axpy, Clip, Command, Damp, Exchange, Mean, Probe, Replay, Update
from farflung.sync.robust_rules import merged
from farflung.sync.strategies.seed_and_scalar import narrow
from farflung.sync.unit_matching import in_one_order

__all__ = ["Group", "Inner", "Replica", "Task"]

Array = npt.NDArray[Any]
Layers = list[Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is trained. ``start``: parameters, one array per layer. ``gradient(parameters, step, member)`` gives loss and
    gradients. ``names``: for each layer the (name, size) of the parameters that lie in it one after the other, by which
    directions are drawn (none: a layer is one parameter with its number as name)."""

    start: Sequence[Array]
    gradient: Callable[[Sequence[Array], int, int], tuple[float, Layers]]
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    names: Sequence[Sequence[tuple[str, int]]] = ()

    def direction(self, seed: int, layer: int) -> Array:
        """The signs of a layer, one after the other."""
        parts = self.names[layer] if self.names else [(str(layer), self.start[layer].size)]
        return np.concatenate([signs(derive(seed, name), size) for name, size in parts])


class Inner:
    """SGD with momentum and AdamW as ``torch.optim`` computes them, layer by layer."""

    def __init__(self, spec: OptimizerSpec, layers: int) -> None:
        self._spec = spec
        self._steps = [0] * layers
        self._first: list[Array | float] = [0.0] * layers
        self._second: list[Array | float] = [0.0] * layers

    def update(self, layer: int, parameter: Array, gradient: Array) -> None:
        """Apply ``gradient`` to ``parameter`` in place."""
        spec = self._spec
        self._steps[layer] += 1
        if spec.name == "adamw":
            self._adamw(layer, parameter, gradient)
            return
        decay = spec.weight_decay or 0.0
        move: Array = gradient + decay * parameter
        if spec.momentum:
            self._first[layer] = spec.momentum * self._first[layer] + move
            move = move + spec.momentum * self._first[layer] if spec.nesterov else np.asarray(self._first[layer])
        parameter -= spec.lr * move

    def _adamw(self, layer: int, parameter: Array, gradient: Array) -> None:
        spec, step = self._spec, self._steps[layer]
        one, two = spec.betas
        parameter *= 1.0 - spec.lr * (0.01 if spec.weight_decay is None else spec.weight_decay)
        self._first[layer] = one * self._first[layer] + (1 - one) * gradient
        self._second[layer] = two * self._second[layer] + (1 - two) * gradient**2
        scale = np.sqrt(self._second[layer] / (1 - two**step)) + spec.eps
        parameter -= spec.lr / (1 - one**step) * self._first[layer] / scale


@dataclass(slots=True, kw_only=True)
class Replica:
    """One member: its registers (name -> one array per layer), its inner optimizer, and the commands that it has yet to do."""

    world: World
    registers: dict[str, Layers]
    inner: Inner
    queue: deque[Command] = field(default_factory=deque)
    sent_bytes: float = 0.0
    slopes: list[float] = field(default_factory=list)
    remembered: Remembered = field(default_factory=Remembered)

    @property
    def parameters(self) -> Layers:
        """The parameters."""
        return self.registers["parameters"]

    def joined(self, register: str, layers: Sequence[int]) -> Array:
        """Layers of a register, one after the other."""
        return np.concatenate([self.registers[register][layer].reshape(-1) for layer in layers])


@dataclass(slots=True)
class _Post:
    """An exchange or probe under way: who is expected, and what each has sent (for each layer)."""

    expected: frozenset[int]
    values: dict[int, Layers] = field(default_factory=dict)


class Group:
    """Replicas under one strategy.

    ``absent(step)`` names the members that are away in a step; one that comes back takes parameters and shared registers from
    another. Exchanges that it had begun count.
    """

    def __init__(
        self, strategy: Strategy, world: World, task: Task, *, absent: Callable[[int], Collection[int]] = lambda step: ()
    ) -> None:
        self.strategy, self.task, self._absent = strategy, task, absent
        self._posts: dict[str, _Post] = {}
        self._away: frozenset[int] = frozenset()
        self._step = 0
        self.replicas = [self._replica(replace(world, rank=rank)) for rank in world.group]
        for replica in self.replicas:
            replica.queue.extend(strategy.init(replica.world))
        self._drain()

    def run(self, steps: int) -> list[float]:
        """Take ``steps`` steps; the mean loss of the members that are present, for each.

        Raises:
            RuntimeError: all replicas wait for each other.
        """
        return [self._take_step() for _ in range(steps)]

    def end(self) -> None:
        """End the run: carry out what the strategy has for its end.

        Raises:
            RuntimeError: all replicas wait for each other.
        """
        for replica in self._present():
            replica.queue.extend(self.strategy.end(self._step, replica.world))
        self._drain()

    def spread(self) -> float:
        """Root of the mean squared distance of the replicas' parameters from their mean (divergence)."""
        rows = np.stack([replica.joined("parameters", replica.world.every) for replica in self.replicas])
        return float(np.sqrt(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()))

    def _replica(self, world: World) -> Replica:
        start = [np.array(layer) for layer in self.task.start]
        registers = {register.name: [np.zeros_like(layer) for layer in start] for register in self.strategy.traits.registers}
        registers |= {"parameters": start, "gradient": [np.zeros_like(layer) for layer in start]}
        return Replica(world=world, registers=registers, inner=Inner(self.task.optimizer, len(start)))

    def _take_step(self) -> float:
        step, away = self._step, frozenset(self._absent(self._step))
        for rank in self._away - away:
            self._rejoin(self.replicas[rank], away | self._away)
        self._away = away
        losses = []
        for replica in self._present():
            program = self.strategy.step(step, replica.world)
            if not program.rests:
                loss, gradient = self.task.gradient(replica.parameters, step, replica.world.rank)
                losses.append(loss)
                if program.backward:
                    replica.registers["gradient"] = gradient
            replica.queue.extend(program.commands)
        self._drain()
        self._step += 1
        return float(np.mean(losses))

    def _present(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.world.rank not in self._away]

    def _rejoin(self, replica: Replica, unfit: frozenset[int]) -> None:
        source = next(other for other in self.replicas if other.world.rank not in unfit)
        for name in ["parameters", *(register.name for register in self.strategy.traits.registers if register.shared)]:
            replica.registers[name] = [np.array(layer) for layer in source.registers[name]]

    def _drain(self) -> None:
        present = self._present()
        while any(replica.queue for replica in present):
            moved = False
            for replica in present:
                while replica.queue and self._can(replica.queue[0]):
                    self._do(replica, replica.queue.popleft())
                    moved = True
            if not moved:
                waiting = {replica.world.rank: replica.queue[0] for replica in present if replica.queue}
                raise RuntimeError(f"all replicas wait: {waiting}")

    def _can(self, command: Command) -> bool:
        if not isinstance(command, Mean | Aggregate | Replay):
            return True
        post = self._posts.get(command.tag)
        return post is not None and post.expected <= post.values.keys()

    def _do(self, replica: Replica, command: Command) -> None:
        match command:
            case Update():
                for layer in command.layers:
                    replica.inner.update(layer, replica.parameters[layer], replica.registers["gradient"][layer])
            case Axpy():
                self._axpy(replica, command)
            case Exchange():
                self._exchange(replica, command)
            case Mean():
                self._mean(replica, command)
            case Aggregate():
                self._aggregate(replica, command)
            case Clip() | Damp():
                self._scale(replica, command)
            case Probe():
                self._probe(replica, command)
            case Replay():
                self._replay(replica, command)

    def _post(self, tag: str, sources: Sequence[int], rank: int, values: Layers) -> None:
        post = self._posts.setdefault(tag, _Post(frozenset(sources) - self._away))
        if rank in sources:
            post.values[rank] = values

    def _axpy(self, replica: Replica, command: Axpy) -> None:
        into, x = replica.registers[command.into], replica.registers[command.x]
        for layer in command.layers:
            added = command.a * x[layer]
            into[layer] = added + command.b * into[layer] if command.b else added

    def _exchange(self, replica: Replica, command: Exchange) -> None:
        if replica.world.rank not in command.sources:
            self._post(command.tag, command.sources, replica.world.rank, [])
            return
        layers = {str(layer): replica.registers[command.source][layer] for layer in command.layers}
        sent = replica.remembered.encode(command, layers, command.tag, replica.world.rank)
        replica.sent_bytes += sum(payload.nbytes for payload in sent)
        values = shaped([np.array(decode_payload(payload)) for payload in sent], layers.values())
        self._post(command.tag, command.sources, replica.world.rank, values)

    def _mean(self, replica: Replica, command: Mean) -> None:
        names = [str(layer) for layer in command.layers]
        values = {
            rank: list(replica.remembered.arrived(command.tag, rank, dict(zip(names, found, strict=True))).values())
            for rank, found in sorted(self._posts[command.tag].values.items())
        }
        replica.remembered.done(command.tag)
        shares = renormalized(command.group, command.weights, values)
        if command.units:
            ranks = sorted(values)
            members = [dict(zip(names, values[rank], strict=True)) for rank in ranks]
            ordered = in_one_order(members, command.units, ranks.index(command.reference))
            values = {rank: list(found.values()) for rank, found in zip(ranks, ordered, strict=True)}
        for position, layer in enumerate(command.layers):
            rows = {rank: values[rank][position] for rank in sorted(shares)}
            mean = np.asarray(sum(shares[rank] * row for rank, row in rows.items()))
            if command.keep_variance:
                wanted = sum(shares[rank] * float(row.var()) for rank, row in rows.items())
                centre, found = mean.mean(), float(mean.var())
                mean = centre + (mean - centre) * np.sqrt(wanted / found) if found > 0 else mean
            replica.registers[command.into][layer] = mean.astype(rows[min(rows)].dtype)

    def _aggregate(self, replica: Replica, command: Aggregate) -> None:
        values = self._posts[command.tag].values
        rows = np.stack([np.concatenate([v.reshape(-1) for v in values[rank]]) for rank in sorted(values)])
        values_of_all, _ = merged(command.rule, rows, command.faulty, command.directions)
        into, start = replica.registers[command.into], 0
        for layer in command.layers:
            size = into[layer].size
            into[layer] = values_of_all[start : start + size].reshape(into[layer].shape)
            start += size

    def _scale(self, replica: Replica, command: Clip | Damp) -> None:
        norm = float(np.linalg.norm(replica.joined(command.register, command.layers)))
        if norm == 0.0:
            return
        if isinstance(command, Clip):
            factor = min(1.0, command.max_norm / norm)
        else:
            factor = 1.0 / (1.0 + float(np.linalg.norm(replica.joined(command.gap, command.layers))) / norm)
        for layer in command.layers:
            replica.registers[command.register][layer] = replica.registers[command.register][layer] * factor

    def _probe(self, replica: Replica, command: Probe) -> None:
        ends = []
        for sign in (command.scale, -command.scale):
            moved = list(replica.parameters)
            for layer in command.layers:
                moved[layer] = moved[layer] + self._signs(replica, command.seed, layer) * moved[layer].dtype.type(sign)
            ends.append(self.task.gradient(moved, self._step, replica.world.rank)[0])
        number = narrow((ends[0] - ends[1]) / (2 * command.scale), command.bits)
        replica.slopes.append(float(number[0]))
        replica.sent_bytes += command.last * command.bits / 8 * (len(command.group) > 1)
        self._post(command.tag, command.group, replica.world.rank, [np.array(replica.slopes[-command.last :])])

    def _replay(self, replica: Replica, command: Replay) -> None:
        values = self._posts[command.tag].values
        weights = dict(zip(command.group, command.weights, strict=True))
        shares = renormalized(tuple(weights), tuple(weights.values()), values)
        for layer in command.layers:
            totals: dict[int, float] = {}
            for rank, share in shares.items():
                seeds = [seed for member, seed in zip(command.group, command.seeds, strict=True) if member == rank]
                for seed, number in zip(seeds, values[rank][0][-len(seeds) :], strict=True):
                    totals[seed] = totals.get(seed, 0.0) + share * float(number)
            total = np.zeros_like(replica.parameters[layer])
            for seed, factor in totals.items():
                total += self._signs(replica, seed, layer) * total.dtype.type(factor)
            replica.registers["gradient"][layer] = total

    def _signs(self, replica: Replica, seed: int, layer: int) -> Array:
        like = replica.parameters[layer]
        return self.task.direction(seed, layer).astype(like.dtype).reshape(like.shape)
