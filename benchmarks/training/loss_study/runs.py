"""Training with compressed values in one process: the cuts and the replicas of the ``loss-study`` benchmark.

A pipeline's value goes through encode and decode where it would cross a link, forwards and backwards; replicas' gradients where
they would be exchanged. Nothing else differs from a plain loop, so what comes out is what a pipeline or a group of workers would
reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from farflung.codecs import Codec, adaptive_ratios, keyed, read_codec, words_per_kept
from farflung.codecs.base import Array
from farflung.codecs.exchanged import Remembered, shaped
from farflung.codecs.members import decode_payload
from farflung.codecs.samples import Ids, SampleCoder, SampleTable
from farflung.frontends.recipes.gpt import Block
from farflung.frontends.recipes.resnet import Unit
from farflung.frontends.recipes.waist import Waist
from farflung.sync.commands import Exchange

__all__ = [
    "Batch",
    "Gradients",
    "Network",
    "Training",
    "Values",
    "adaptive_codecs",
    "cut_bytes",
    "gpt_loss",
    "gpt_parts",
    "gpt_stages",
    "held_out",
    "resnet_parts",
    "resnet_stages",
    "train",
    "with_waists",
]

_LIMIT = 1 << 30
#: Inputs, targets and the samples' numbers.
Batch = tuple[Tensor, Tensor, Ids]


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """How a pipeline's values travel: codecs as ``codecs.read_codec`` takes them; ``difference``: forwards by ``codecs.samples``.

    ``feedback``: backwards with what was dropped of each sample added at its next visit.
    ``by_link``: the codec of each cut instead.
    """

    forward: str = "identity"
    backward: str = "identity"
    difference: bool = False
    feedback: bool = False
    by_link: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """How replicas' gradients travel: a codec and a memory as a strategy's settings have them."""

    codec: str = "identity"
    memory: str = "none"


@dataclass(slots=True, kw_only=True)
class Network:
    """Stages one after the other; ``loss`` of what the last gives and the targets."""

    stages: nn.ModuleList
    loss: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """``steps`` of AdamW over ``batch(step)``, cut into as many parts as there are ``members``."""

    steps: int
    lr: float
    batch: Callable[[int], Batch]
    members: int = 1
    warmup: int = 10


class _Counter:
    """Bytes that have crossed, as sent and dense."""

    def __init__(self) -> None:
        self.sent = 0
        self.dense = 0

    def count(self, sections: Sequence[memoryview | bytes], dense: int) -> None:
        self.sent += sum(memoryview(section).nbytes for section in sections)
        self.dense += dense


class _Wire:
    """One direction of one cut."""

    def __init__(self, text: str, name: str, counter: _Counter, memory: str = "") -> None:
        self.codec: Codec | None = None if text == "identity" else read_codec(text)
        self.name, self.counter, self.step = name, counter, 0
        self.table = SampleTable(limit=_LIMIT) if memory and self.codec is not None else None
        self.feeds_back = memory == "error_feedback"

    def carry(self, array: Array, ids: Ids) -> Array:
        """What arrives of ``array``."""
        if self.codec is None:
            self.counter.count([array.reshape(-1).view(np.uint8).data], array.nbytes)
            return array
        self.step += 1
        if self.table is None:
            payload = keyed(self.codec, self.step, self.name).encode(array)
            self.counter.count(payload.sections, array.nbytes)
            return decode_payload(payload)
        if self.feeds_back:
            wanted = array + self.table.bases(ids, array.size // len(ids)).reshape(array.shape)
            payload = keyed(self.codec, self.step, self.name).encode(wanted)
            self.counter.count(payload.sections, array.nbytes)
            arrived = decode_payload(payload)
            self.table.put(ids, (wanted - arrived).reshape(len(ids), -1))
            return arrived
        sent = SampleCoder(codec=self.codec).encode(array, ids, self.table, self.step, self.name)
        for payload in sent:
            self.counter.count(payload.sections, 0)
        self.counter.count([b"\0" * 8 * len(ids)], array.nbytes)  # the samples' numbers travel, too
        return self.table.bases(ids, array.size // len(ids)).reshape(array.shape)


class _Cross(torch.autograd.Function):
    """A value crosses a cut; its gradient comes back over it."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, there: _Wire, back: _Wire, ids: Ids) -> Tensor:
        ctx.back, ctx.ids = back, ids
        return torch.from_numpy(np.ascontiguousarray(there.carry(value.detach().contiguous().numpy(), ids)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        arrived = ctx.back.carry(gradients[0].contiguous().numpy(), ctx.ids)
        return torch.from_numpy(np.ascontiguousarray(arrived)), None, None, None


class _Exchange:
    """What one member sends of its gradients, as the runtime does it for all parameters of a step."""

    def __init__(self, spec: Gradients, member: int, counter: _Counter) -> None:
        self.command = Exchange(tag="gradients", source="gradients", layers=(), group=(), codec=spec.codec, memory=spec.memory)
        self.member, self.counter, self.remembered = member, counter, Remembered()

    def carry(self, gradients: Sequence[Array], step: int) -> list[Array]:
        """What arrives of ``gradients`` at the others."""
        dense = sum(array.nbytes for array in gradients)
        self.counter.count([], dense)
        if self.command.codec == "identity":
            self.counter.sent += dense
            return list(gradients)
        named = {str(number): array for number, array in enumerate(gradients)}
        payloads = self.remembered.encode(self.command, named, step, self.member)
        for payload in payloads:
            self.counter.count(payload.sections, 0)
        arrived = shaped([np.array(decode_payload(payload)) for payload in payloads], gradients)
        found = self.remembered.arrived(self.command.tag, self.member, dict(zip(named, arrived, strict=True)))
        self.remembered.done(self.command.tag)
        return list(found.values())


def train(
    network: Network, training: Training, values: Values, gradients: Gradients, at: Callable[[int, int, int], None]
) -> list[float]:
    """Train ``network`` in place: the loss of each step. After each step, ``at(step, bytes sent, dense bytes)`` is called."""
    counter = _Counter()
    wires = [_pair(values, cut, counter) for cut in range(len(network.stages) - 1)]
    exchanges = [_Exchange(gradients, member, counter) for member in range(training.members)]
    parameters = list(network.stages.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=training.lr, weight_decay=0.01)
    network.stages.train()
    losses = []
    for step in range(training.steps):
        for group in optimizer.param_groups:
            group["lr"] = training.lr * min(1.0, (step + 1) / training.warmup)
        batch = training.batch(step)
        if training.members == 1:
            optimizer.zero_grad(set_to_none=True)
            losses.append(_backward(network, batch, wires))
        else:
            losses.append(_exchange_all(network, batch, exchanges, step))
        optimizer.step()
        at(step + 1, counter.sent, counter.dense)
    return losses


def _pair(values: Values, cut: int, counter: _Counter) -> tuple[_Wire, _Wire]:
    forward = values.by_link[cut] if values.by_link else values.forward
    backward = values.by_link[cut] if values.by_link else values.backward
    there = _Wire(forward, f"{cut}f", counter, "difference" if values.difference else "")
    return there, _Wire(backward, f"{cut}b", counter, "error_feedback" if values.feedback else "")


def _loss(network: Network, batch: Batch, wires: Sequence[tuple[_Wire, _Wire]]) -> Tensor:
    x, targets, ids = batch
    for number, stage in enumerate(network.stages):
        x = stage(x)
        if number < len(wires):
            x = _Cross.apply(x, *wires[number], ids)  # type: ignore[no-untyped-call]
    return network.loss(x, targets)


def _backward(network: Network, batch: Batch, wires: Sequence[tuple[_Wire, _Wire]]) -> float:
    """Add the gradients of the loss on ``batch``; return the loss."""
    loss = _loss(network, batch, wires)
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def _exchange_all(network: Network, batch: Batch, exchanges: Sequence[_Exchange], step: int) -> float:
    """Each member's gradient of its part of the batch, through its codec; then their mean. Return the mean loss."""
    parameters = list(network.stages.parameters())
    total: list[Array] = []
    losses = []
    parts = [torch.chunk(item, len(exchanges)) for item in batch[:2]]
    for member, exchange in enumerate(exchanges):
        network.stages.zero_grad(set_to_none=True)
        losses.append(_backward(network, (parts[0][member], parts[1][member], batch[2]), ()))
        own = [_gradient(parameter) for parameter in parameters]
        arrived = exchange.carry(own, step)
        total = [a + b for a, b in zip(total, arrived, strict=True)] if total else [np.array(array) for array in arrived]
    for parameter, array in zip(parameters, total, strict=True):
        parameter.grad = torch.from_numpy(array / len(exchanges))
    return sum(losses) / len(losses)


def _gradient(parameter: nn.Parameter) -> Array:
    assert parameter.grad is not None
    found: Array = parameter.grad.numpy().copy()
    return found


@torch.no_grad()
def cut_bytes(network: Network, batch: Batch) -> list[int]:
    """Bytes of the value that crosses each cut for ``batch``."""
    found, x = [], batch[0]
    network.stages.eval()
    for stage in list(network.stages)[:-1]:
        x = stage(x)
        found.append(x.numel() * x.element_size())
    network.stages.train()
    return found


def adaptive_codecs(nbytes: Sequence[int], links: Sequence[float], latency: float, ratio: float, values: str) -> tuple[str, ...]:
    """AdaTopK's codec for each cut: equation (7) on links of ``links`` bytes per second, with the format's own overhead."""
    seconds = [latency + size / rate for size, rate in zip(nbytes, links, strict=True)]
    ratios = adaptive_ratios(seconds, ratio, lambda kept: words_per_kept(kept, values))
    return tuple("identity" if one <= 1.0 else f"topk:ratio={one:.3f},values={values}" for one in ratios)


@torch.no_grad()
def held_out(network: Network, batches: Sequence[Batch]) -> float:
    """The mean loss on ``batches``, values uncompressed."""
    network.stages.eval()
    losses = [float(_loss(network, batch, ())) for batch in batches]
    network.stages.train()
    return sum(losses) / len(losses)


class _First(nn.Module):
    def __init__(self, vocabulary: int, sequence: int, width: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(sequence, width)
        for part in (self.token, self.place):
            nn.init.normal_(part.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        return found


def gpt_parts(layers: int, width: int, sequence: int) -> list[nn.Module]:
    """A byte-level GPT as embedding, blocks and head (as ``recipes.gpt``, untied, with heads of 16)."""
    torch_blocks = [Block(width, max(1, width // 16), 0.0) for _ in range(layers)]
    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256, bias=False))
    parts: list[nn.Module] = [_First(256, sequence, width), *torch_blocks, last]
    for block in torch_blocks:
        for name, parameter in block.named_parameters():
            if parameter.dim() > 1:
                narrow = name.endswith(("mix_out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if narrow else 0.02)
    return parts


def gpt_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of the next byte."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def gpt_stages(layers: int, width: int, sequence: int) -> Network:
    """``gpt_parts`` in four stages."""
    parts = gpt_parts(layers, width, sequence)
    size = layers // 4
    cuts = [0, 1 + size, 1 + 2 * size, 1 + 3 * size, len(parts)]
    stages = nn.ModuleList(nn.Sequential(*parts[a:b]) for a, b in pairwise(cuts))
    return Network(stages=stages, loss=gpt_loss)


def with_waists(network: Network, width: int, *, share: int, learned: bool) -> None:
    """Lead the values of ``network``'s cuts, ``width`` wide, through ``width // share`` dims (``recipes.waist``)."""
    for stage, following in pairwise(list(network.stages)):
        waist = Waist(width, max(1, width // share), learned=learned)
        assert isinstance(stage, nn.Sequential)
        assert isinstance(following, nn.Sequential)
        stage.append(waist.down)
        following.insert(0, waist.up)


def resnet_parts(width: int, counts: Sequence[int], bottleneck: bool) -> list[nn.Module]:
    """A ResNet (stem for CIFAR) as stem, units and head; the first group has ``width`` channels (64: as published)."""
    parts: list[nn.Module] = [_stem(width)]
    inside = width
    for group, count in enumerate(counts):
        for index in range(count):
            parts.append(Unit(inside, width << group, 2 if group and not index else 1, bottleneck=bottleneck))
            inside = (width << group) * (4 if bottleneck else 1)
    parts.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10)))
    for part in parts:
        for module in part.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return parts


def resnet_stages(width: int) -> Network:
    """``resnet_parts`` of ResNet-18, a stage for each group."""
    stem, *units, head = resnet_parts(width, (2, 2, 2, 2), bottleneck=False)
    groups = [units[start : start + 2] for start in range(0, 8, 2)]
    stages = [[stem, *groups[0]], groups[1], groups[2], [*groups[3], head]]
    return Network(stages=nn.ModuleList(nn.Sequential(*parts) for parts in stages), loss=functional.cross_entropy)


def _stem(width: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
