"""A codec for each layer, chosen again and again from what all members measured (L-GreCo, ``sync.strategies.lgreco``).

A member measures its own gradient of a step: what every codec would lose of each layer, and how many bytes it would send. All
report that at the end of the step, and choose from the sums at the end of the next one. So nobody waits for reports, and all
choose alike. Cost: in one of ``every`` steps each layer is encoded and decoded by every option; the reports have 16 bytes for
each layer and option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from farflung.codecs import CODECS, Option, allocate, decode_payload
from farflung.codecs.exchanged import Remembered, shaped
from farflung.engines.base import Array
from farflung.errors import CodecError
from farflung.step.run_setup import RunSetup
from farflung.step.sync.stage_replica import StageReplica
from farflung.step.sync.value_exchange import ValueExchange
from farflung.sync import LayerCodecs, World, codec_name
from farflung.sync.commands import Exchange

__all__ = ["LayerCodecFollower", "chosen_codecs", "codecs_from", "codecs_to"]


class LayerCodecFollower:
    """For the replicas of one worker. ``notify``: takes lines for people."""

    def __init__(self, rule: LayerCodecs, setup: RunSetup, values: ValueExchange, notify: Callable[[str], None]) -> None:
        self._rule, self._setup, self._values, self._notify = rule, setup, values, notify
        self._reports: dict[int, Array] = {}

    def gradients_complete(self, replica: StageReplica, place: int) -> None:
        """Measure the gradient of the step, if it is time; the means have not been taken yet."""
        if place % self._rule.every == 0:
            self._reports[replica.stage] = self._measured(replica, place)

    def end_step(self, replica: StageReplica, step: int, place: int) -> None:
        """All exchanges of ``step`` have ended; ``place``: the step counted from where the strategy began."""
        for reports in self._values.end_reports(replica):
            codecs = chosen_codecs(self._rule, reports, replica.world)
            if codecs != replica.world.codecs:
                replica.follow(replace(replica.world, codecs=codecs))
                self._report(replica, step)
        if replica.stage in self._reports:
            self._values.begin_report(replica, step, self._reports.pop(replica.stage))

    def _measured(self, replica: StageReplica, place: int) -> Array:
        """Of each layer its squared norm, and what every option loses (squared norm) and sends (bytes): float64[L, 1 + 2 C]."""
        found = np.zeros((len(replica.layers), 1 + 2 * len(self._rule.options)))
        key = self._setup.job.seed, place, replica.stage, replica.world.rank
        for layer in replica.world.every:
            values = replica.read("gradient", replica.names((layer,)))
            found[layer, 0] = sum(_squares(array) for array in values.values())
            what = f"can't measure what it loses of layer {layer} of stage {replica.stage}"
            with self._setup.budget.reserved(2 * sum(a.nbytes for a in values.values()), "measuring codecs of layers"):
                for number, codec in enumerate(self._rule.options):
                    with CODECS.blame(codec_name(codec), what, CodecError):
                        found[layer, 1 + 2 * number : 3 + 2 * number] = _cost(codec, layer, values, *key)
        return found

    def _report(self, replica: StageReplica, step: int) -> None:
        if replica.world.rank == 0:
            names = ", ".join(replica.world.codecs)
            self._notify(f"step {step + 1}: measured errors ask for other codecs of layers in stage {replica.stage}: {names}")


def chosen_codecs(rule: LayerCodecs, reports: Sequence[Array], world: World) -> tuple[str, ...]:
    """The codec of each layer of ``world``: the fewest bytes within the rule's error.

    ``reports``: float64[L, 1 + 2 C] of every member, in any shape. Where one of them is not finite, the codecs in force stay.
    Never more bytes than with the second option for all layers, if that is within the error.
    """
    shape = len(world.layers), 1 + 2 * len(rule.options)
    total = np.sum([report.reshape(shape) for report in reports], axis=0)
    if not np.isfinite(total).all():
        return world.codecs
    free = [layer for layer in world.every if layer not in world.shared]
    options = [
        [Option(cost=float(row[2 + 2 * n]), error=float(row[1 + 2 * n]) if n else 0.0) for n in range(len(rule.options))]
        for row in total[free]
    ]
    uniform = sum(row[1].error for row in options)
    budget = rule.error**2 * float(total[free, 0].sum()) if rule.error else uniform
    picked = allocate(options, budget) if options else ()
    most = sum(row[1].cost for row in options)
    if uniform <= budget and sum(row[n].cost for row, n in zip(options, picked, strict=True)) > most:
        picked = (1,) * len(options)  # errors are rounded up to a grid there
    found = dict(zip(free, picked, strict=True))
    return tuple(rule.options[found.get(layer, 0)] for layer in world.every)


def codecs_to(rule: LayerCodecs, world: World) -> Array:
    """The codecs in force as a checkpoint stores them: the number of options, then that of each layer's (float32[1 + L])."""
    return np.array([len(rule.options), *map(rule.options.index, world.codecs)], np.float32)


def codecs_from(rule: LayerCodecs, array: Array, world: World) -> World:
    """``world`` with the codecs that ``codecs_to`` stored; as it is where the layers or options are others now."""
    count, *numbers = (int(value) for value in array.reshape(-1).tolist())
    known = count == len(rule.options) and all(0 <= number < count for number in numbers)
    if not known or len(numbers) != len(world.layers):
        return world
    return replace(world, codecs=tuple(rule.options[number] for number in numbers))


def _cost(codec: str, layer: int, values: Mapping[str, Array], *key: int) -> tuple[float, float]:
    """What ``codec`` loses of ``values`` (squared norm) and sends (bytes)."""
    exchange = Exchange(tag=f"{layer}", source="gradient", layers=(layer,), group=(), codec=codec)
    payloads = Remembered().encode(exchange, values, *key)
    arrived = shaped([decode_payload(payload) for payload in payloads], values.values())
    with np.errstate(all="ignore"):
        lost = sum(_squares(was.astype(np.float64) - now) for was, now in zip(values.values(), arrived, strict=True))
    return lost, float(sum(payload.nbytes for payload in payloads))


def _squares(array: Array) -> float:
    flat = array.reshape(-1).astype(np.float64)
    return float(flat @ flat)
