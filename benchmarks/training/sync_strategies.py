"""``sync-strategies``: every strategy on one small task: bytes sent, memory, divergence, and loss at equal tokens.

A byte-level network in NumPy under ``farflung.testing.replicas``; nothing is timed, so figures do not depend on the machine's
speed.
"""

from __future__ import annotations

import statistics
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.errors import DataError
from farflung.job.spec import OptimizerSpec
from farflung.sync import STRATEGIES, LayerInfo, Strategy, World, get_strategy
from farflung.sync.timeline import mean_step_seconds
from farflung.testing.replicas import Group, Layers, Task
from farflung.units import Bytes, Seconds

__all__ = ["ByteNetwork", "SyncStrategies", "SyncStrategiesSettings", "standard_text"]

Array = npt.NDArray[Any]
PARTIAL = frozenset({"partial", "dreamddp", "contiguous", "free_sets"})
#: Local SGD where half of the members are half as fast and take half of the steps, for as many samples.
_PACED = "local_sgd by_speed"
ARRIVALS = frozenset({"fedbuff", "fedfix", "fedcompass"})
SCALARS = frozenset({"seed_and_scalar", "fedkseed"})
ROUNDS = {"local_sgd", "diloco", "streaming_diloco", "co2", "modest", "fedamd", "fedkseed", "dimat", *ARRIVALS, *PARTIAL}


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStrategiesSettings(Settings):
    """The network, the group, and ``sync_every`` of all strategies that have one. ``seeds``: repetitions."""

    strategies: tuple[str, ...] = tuple(STRATEGIES)
    seeds: int = 3
    members: int = 4
    steps: int = 250
    samples: int = 32
    sync_every: int = 5
    lr: float = 2e-3
    optimizer: str = "adamw"
    context: int = 8
    width: int = 96
    hidden_layers: int = 4
    zeroth_lr: float = 2e-4


class SyncStrategies:
    """What a strategy costs and what it loses."""

    name = "sync-strategies"
    summary = "sync strategies on a small byte-level network: bytes, extra memory, divergence, loss at equal tokens"

    def settings(self, quick: bool) -> SyncStrategiesSettings:
        """Quick: a few steps of a tiny network."""
        if quick:
            return SyncStrategiesSettings(quick=True, seeds=1, members=3, steps=12, samples=4, width=8, hidden_layers=3)
        return SyncStrategiesSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Train under each strategy; S-SGD first."""
        assert isinstance(settings, SyncStrategiesSettings)
        names = ["ssgd", *(name for name in settings.strategies if name != "ssgd")]
        found: dict[str, dict[str, float]] = {}
        for name in (*names, *([_PACED] if _PACED.partition(" ")[0] in names else ())):
            say(name)
            found[name] = _measure(settings, name)
        plain = found["ssgd"]["loss"]
        for row in found.values():
            row["gap"] = row["loss"] - plain
        rows = [(name, *row.values()) for name, row in found.items()]
        columns = ("strategy", *found["ssgd"])
        return Report(figures={"strategies": found}, columns=columns, rows=rows, checks=_checks(settings, found))


class ByteNetwork:
    """Predicts the next byte from ``context`` bytes: embedding, tanh layers with residuals, soft-max. All layers are matrices."""

    def __init__(self, settings: SyncStrategiesSettings, text: bytes, seed: int, held: bytes = b"") -> None:
        """``held``: text that is not trained on (empty: the last tenth of ``text``)."""
        self._settings, self._seed = settings, seed
        codes = np.frombuffer(text, np.uint8)
        cut = len(codes) * 9 // 10
        self._train, self._held = (codes, np.frombuffer(held, np.uint8)) if held else (codes[:cut], codes[cut:])

    def start(self) -> Layers:
        """First parameters."""
        random, settings = np.random.default_rng(self._seed), self._settings
        shapes = [(256, 16), (16 * settings.context, settings.width)]
        shapes += [(settings.width, settings.width)] * settings.hidden_layers + [(settings.width, 256)]
        return [(random.standard_normal(shape) / np.sqrt(max(16, shape[0]))).astype(np.float32) for shape in shapes]

    def gradient(self, parameters: Sequence[Array], step: int, member: int) -> tuple[float, Layers]:
        """Mean loss in nats per byte on the member's samples of the step, and its gradient."""
        return self._both(parameters, *self._batch(self._train, self._settings.samples, (self._seed, step, member)))

    def held_out(self, parameters: Sequence[Array]) -> float:
        """Mean loss in nats per byte on text that is not trained on."""
        return self._both(parameters, *self._batch(self._held, 4096, (0, 0, 0)))[0]

    def _batch(self, codes: Array, samples: int, key: tuple[int, ...]) -> tuple[Array, Array]:
        at = np.random.default_rng(key).integers(0, len(codes) - self._settings.context, samples)
        window = codes[at[:, None] + np.arange(self._settings.context + 1)]
        return window[:, :-1], window[:, -1]

    def _both(self, parameters: Sequence[Array], x: Array, y: Array) -> tuple[float, Layers]:
        embedding, first, *hidden, last = parameters
        outs = [embedding[x].reshape(len(x), -1)]
        outs.append(np.tanh(outs[0] @ first))
        for weight in hidden:
            outs.append(outs[-1] + np.tanh(outs[-1] @ weight))
        scores = outs[-1] @ last
        scores -= scores.max(axis=1, keepdims=True)
        shares = np.exp(scores)
        shares /= shares.sum(axis=1, keepdims=True)
        rows = np.arange(len(y))
        loss = float(-np.log(shares[rows, y] + 1e-30).mean())
        shares[rows, y] -= 1
        shares /= len(y)
        return loss, self._back(parameters, outs, x, shares)

    def _back(self, parameters: Sequence[Array], outs: Sequence[Array], x: Array, delta: Array) -> Layers:
        embedding, first, *hidden, last = parameters
        grads: Layers = [outs[-1].T @ delta]
        delta = delta @ last.T
        for index in range(len(hidden) - 1, -1, -1):
            inner = delta * (1 - (outs[index + 2] - outs[index + 1]) ** 2)
            grads.insert(0, outs[index + 1].T @ inner)
            delta = delta + inner @ hidden[index].T
        inner = delta * (1 - outs[1] ** 2)
        grads.insert(0, outs[0].T @ inner)
        table = np.zeros_like(embedding)
        np.add.at(table, x.reshape(-1), (inner @ first.T).reshape(-1, embedding.shape[1]))
        return [table, *grads]


def _measure(settings: SyncStrategiesSettings, name: str) -> dict[str, float]:
    """Figures of one strategy, means over seeds; ``loss`` is that of the mean of the replicas' parameters."""
    text, losses, spreads = standard_text(), [], []
    extra: dict[str, object] = {}
    taken, steps = _local_steps(settings) if name == _PACED else (), settings.steps
    if taken:
        extra["by_speed"], name = True, name.partition(" ")[0]
        steps = -(-steps * settings.members * settings.sync_every // sum(taken))
    if name in ROUNDS:
        extra["sync_every"] = settings.sync_every
    if name == "dimat":  # the units of the residual stream, which all matrices but the embedding touch
        inner = range(2, 2 + settings.hidden_layers)
        extra["units"] = " ".join(["1:1", *(f"{layer}:{axis}" for layer in inner for axis in (0, 1)), f"{inner.stop}:0"])
    for seed in range(settings.seed, settings.seed + settings.seeds):
        network = ByteNetwork(settings, text, seed)
        start = network.start()
        optimizer = OptimizerSpec(name="adamw" if settings.optimizer == "adamw" else "sgd", lr=settings.lr)
        if name in SCALARS:
            optimizer = OptimizerSpec(name="sgd", lr=settings.zeroth_lr)
        task = Task(start=start, gradient=network.gradient, optimizer=optimizer)
        group = Group(get_strategy(name, **extra), replace(_world(settings, start), local_steps=taken), task)
        group.run(steps)
        replicas = group.replicas
        mean = [np.mean([r.parameters[layer] for r in replicas], axis=0) for layer in range(len(start))]
        losses.append(network.held_out(mean))
        spreads.append(group.spread())
    count = sum(layer.size for layer in start)
    return {
        "loss": statistics.fmean(losses),
        "loss_range": max(losses) - min(losses),
        "bytes_per_parameter_per_step": statistics.fmean(r.sent_bytes for r in replicas) / count / steps,
        "extra_copies": float(len(group.strategy.traits.registers)),
        "model_step_backwards": _modelled(settings, group.strategy, replicas[0].world),
        "divergence": statistics.fmean(spreads) / float(np.sqrt(sum((layer**2).sum() for layer in mean))),
    }


def _local_steps(settings: SyncStrategiesSettings) -> tuple[int, ...]:
    fast = (settings.members + 1) // 2
    return tuple(settings.sync_every if rank < fast else max(1, settings.sync_every // 2) for rank in range(settings.members))


def _modelled(settings: SyncStrategiesSettings, strategy: Strategy, world: World) -> float:
    """Mean step by ``farflung.sync.timeline`` in units of the backward pass, no codec and no forward."""
    backward = sum(layer.bp_seconds for layer in world.layers)
    return mean_step_seconds(strategy, world, 40 * settings.sync_every) / backward


def _world(settings: SyncStrategiesSettings, start: Layers) -> World:
    """Backward times by size, a table look-up nearly free; all exchanges together take ``sync_every`` backwards."""
    total = sum(layer.size for layer in start)
    cost = [0.05 if index == 0 else 1.0 for index in range(len(start))]
    backward = [share * layer.size for share, layer in zip(cost, start, strict=True)]
    scale = settings.sync_every * sum(backward) / total
    layers = tuple(
        LayerInfo(nbytes=Bytes(layer.nbytes), bp_seconds=Seconds(bp), comm_seconds=Seconds(scale * layer.size))
        for layer, bp in zip(start, backward, strict=True)
    )
    return World(rank=0, members=settings.members, layers=layers)


def standard_text(limit: int = 1_000_000) -> bytes:
    """Sources of the Python standard library, in order of their names."""
    found = b""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        found += path.read_bytes()
        if len(found) >= limit:
            return found[:limit]
    raise DataError(
        f"the Python standard library has {len(found)} bytes of sources here, {limit} are needed; install its sources"
    )


def _checks(settings: SyncStrategiesSettings, found: Mapping[str, Mapping[str, float]]) -> tuple[Check, ...]:
    """S-SGD's overlapped forms must be S-SGD itself; the other figures are a table, not a race."""
    same = [name for name in ("wfbp", "asc_wfbp") if name in found]
    gap = max((abs(found[name]["gap"]) for name in same), default=0.0)
    return (Check(name="wfbp and asc_wfbp against ssgd", target="equal losses", measured=f"{gap:g}", passed=gap == 0.0),)
