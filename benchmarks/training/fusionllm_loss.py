"""``fusionllm-loss``: training losses of FusionLLM's Figure 8: dense, uniform top-k and AdaTopK on the links of a testbed.

A stage for each device of OP-Fence's chain (``papers.fusionllm_text``), or for each block if those are fewer. Values are
compressed forwards and backwards as in the paper: the same ratio for all links, or equation (7) with the text's factor 3, both
with positions as int64. The models have the paper's blocks and fewer channels, so that two cores can train them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.cluster import Topology
from farflung.codecs.ratios import PAPER_FACTOR, adaptive_ratios
from farflung.errors import InputError
from farflung.planners.communities import chain_orders, louvain_communities, transfer_seconds

if TYPE_CHECKING:
    from benchmarks.training.loss_study.runs import Batch, Network, Values

__all__ = ["FusionLlmLoss", "FusionLlmLossSettings", "chain_seconds", "codec_values"]

_DENSE, _UNIFORM, _ADAPTIVE = "dense", "top-k", "AdaTopK"
_GPT = "gpt"
#: Units of each group, and whether they are bottlenecks.
_RESNETS: Mapping[str, tuple[tuple[int, ...], bool]] = {
    "resnet-18": ((2, 2, 2, 2), False),
    "resnet-101": ((3, 4, 23, 3), True),
}
_MESSAGE = 1e6
_JUDGED = 4
#: The largest gap to the dense loss that counts as little.
_LITTLE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionLlmLossSettings(Settings):
    """``train``, ``held``: texts to train on and to judge by. ``first``: for the GPT's ``first_steps``, before it is fine-tuned.

    ``images``: a folder with ``train`` and ``test``, in each a folder per class. Empty: made up. ``channels``: of the ResNets'
    first groups (64: as published). ``layers``, ``width``: of the GPT. ``points``: of a curve, each a mean over its steps.
    """

    models: tuple[str, ...] = (*_RESNETS, _GPT)
    topology: str = "fusionllm-testbed1"
    ratio: float = 100.0
    train: str = ""
    held: str = ""
    first: str = ""
    images: str = ""
    channels: int = 8
    image_rows: int = 32
    image_lr: float = 3e-3
    layers: int = 22
    width: int = 64
    sequence: int = 32
    rows: int = 8
    first_steps: int = 300
    first_lr: float = 3e-3
    lr: float = 3e-4
    steps: int = 300
    points: int = 15
    seeds: int = 1


class FusionLlmLoss:
    """Curves of the training loss by model and compression. A loss that is not finite is None."""

    name = "fusionllm-loss"
    summary = "FusionLLM's Figure 8: training losses of ResNets and a GPT, dense, with uniform top-k and with AdaTopK"

    def settings(self, quick: bool) -> FusionLlmLossSettings:
        """Quick: some steps of tiny models on made-up samples."""
        if not quick:
            return FusionLlmLossSettings()
        tiny: dict[str, Any] = {"channels": 2, "image_rows": 4, "layers": 2, "width": 16, "sequence": 8, "rows": 4}
        return FusionLlmLossSettings(
            quick=True, models=("resnet-18", _GPT), topology="local4-two-regions", steps=4, first_steps=1, points=2, **tiny
        )

    def run(self, settings: Settings, say: Say) -> Report:
        """Train all models.

        Raises:
            InputError: a file is missing, or a model is unknown.
        """
        import torch

        assert isinstance(settings, FusionLlmLossSettings)
        before = torch.get_num_threads()
        torch.set_num_threads(settings.threads)
        try:
            models = {model: _curves(settings, model, say) for model in settings.models}
        finally:
            torch.set_num_threads(before)
        return Report(
            figures={"models": models},
            columns=("model", "compression", "stages", "bytes", "training loss", "held-out loss", "against dense"),
            rows=[
                (
                    model,
                    name,
                    found["stages"],
                    f"1/{one['ratio']:.1f}",
                    one["losses"][-1] or "-",
                    one["held_out"] or "-",
                    _text(_gap(found, name)),
                )
                for model, found in models.items()
                for name, one in found["variants"].items()
            ],
            checks=[check for model, found in models.items() for check in _checks(model, found, settings.quick)],
        )


def chain_seconds(topology: Topology, nbytes: Sequence[int]) -> list[float]:
    """Seconds of each value along OP-Fence's chain of devices, both communities and devices in the order of the text."""
    order = chain_orders(louvain_communities(topology), transfer_seconds(topology, _MESSAGE), 1)[0]
    devices = [device for group in order for device in group]
    return [
        float(topology.alpha[a, b] + size / topology.beta[a, b]) for size, (a, b) in zip(nbytes, pairwise(devices), strict=False)
    ]


def codec_values(seconds: Sequence[float], ratio: float) -> dict[str, dict[str, Any]]:
    """Settings of ``Values`` for each compression; ``seconds``: of the uncompressed value of each cut."""
    uniform = f"topk:ratio={ratio:g},format=paper"
    adaptive = [
        "identity" if one <= PAPER_FACTOR else f"topk:ratio={one:.3f},format=paper" for one in adaptive_ratios(seconds, ratio)
    ]
    return {
        _DENSE: {},
        _UNIFORM: {"forward": uniform, "backward": uniform},
        _ADAPTIVE: {"by_link": tuple(adaptive)},
    }


def _curves(settings: FusionLlmLossSettings, model: str, say: Say) -> dict[str, Any]:
    """Each compression's curve, the mean over the seeds."""
    runs: dict[str, list[dict[str, Any]]] = {}
    stages, codecs = 0, {}
    for seed in range(settings.seed, settings.seed + settings.seeds):
        study = _Study(settings, model, seed)
        stages, codecs = study.stages, study.codecs
        for name, how in codecs.items():
            runs.setdefault(name, []).append(study.run(how))
            say(f"{model}, seed {seed}, {name}: {runs[name][-1]['losses'][-1]:.4f}")
    return {
        "stages": stages,
        "parameters": study.parameters,
        "links": codecs[_ADAPTIVE]["by_link"],
        "steps": [round(settings.steps * (point + 1) / settings.points) for point in range(settings.points)],
        "variants": {
            name: {
                "losses": [_mean(point) for point in zip(*(one["losses"] for one in found), strict=True)],
                "held_out": _mean([one["held_out"] for one in found]),
                "last_by_seed": [_mean([one["losses"][-1]]) for one in found],
                "ratio": found[0]["ratio"],
            }
            for name, found in runs.items()
        },
    }


class _Study:
    """One model and one seed: all compressions begin with the same weights and see the same samples."""

    def __init__(self, settings: FusionLlmLossSettings, model: str, seed: int) -> None:
        from benchmarks.training.loss_study.runs import cut_bytes
        from benchmarks.training.loss_study.tasks import pictures, shuffled, texts

        self._settings, self._model, self._seed = settings, model, seed
        if model == _GPT:
            before, samples, self._held = texts((settings.first, settings.train, settings.held), settings.sequence)
            rows, self._lr = settings.rows, settings.lr
        else:
            before, samples, self._held = pictures(settings.images)
            rows, self._lr = settings.image_rows, settings.image_lr
        topology = Topology.preset(settings.topology)
        network = _network(settings, model, seed, len(topology))
        self._batch = shuffled(samples, rows, seed)
        if model == _GPT:
            self._train(network, shuffled(before, rows, seed), settings.first_steps, settings.first_lr)
        self._start = {name: value.clone() for name, value in network.stages.state_dict().items()}
        self.stages = len(network.stages)
        self.parameters = sum(parameter.numel() for parameter in network.stages.parameters())
        self.codecs = codec_values(chain_seconds(topology, cut_bytes(network, self._batch(0))), settings.ratio)
        self._network = network

    def run(self, how: Mapping[str, Any]) -> dict[str, Any]:
        """Losses of one compression, and dense bytes over those that were sent."""
        import numpy as np

        from benchmarks.training.loss_study.runs import Values, held_out
        from benchmarks.training.loss_study.tasks import samples_at

        network, settings = self._network, self._settings
        network.stages.load_state_dict(self._start)
        losses, ratio = self._train(network, self._batch, settings.steps, self._lr, Values(**how))
        edges = [round(settings.steps * point / settings.points) for point in range(settings.points + 1)]
        judges = [samples_at(self._held, np.arange(i * 64, i * 64 + 64) % len(self._held[0])) for i in range(_JUDGED)]
        return {
            "losses": [fmean(losses[first:last]) for first, last in pairwise(edges)],
            "held_out": held_out(network, judges),
            "ratio": ratio,
        }

    def _train(
        self, network: Network, batch: Callable[[int], Batch], steps: int, lr: float, values: Values | None = None
    ) -> tuple[list[float], float]:
        from benchmarks.training.loss_study.runs import Gradients, Training, Values, train

        crossed = [1, 1]

        def at(step: int, sent: int, dense: int) -> None:
            crossed[:] = [sent, dense]

        losses = train(network, Training(steps=steps, lr=lr, batch=batch), values or Values(), Gradients(), at)
        return losses, crossed[1] / max(1, crossed[0])


def _network(settings: FusionLlmLossSettings, model: str, seed: int, devices: int) -> Network:
    """The model in at most ``devices`` stages of about as many blocks.

    Raises:
        InputError: the model is unknown.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    from benchmarks.training.loss_study.runs import Network, gpt_loss, gpt_parts, resnet_parts

    torch.manual_seed(seed)
    loss: Callable[..., torch.Tensor] = functional.cross_entropy
    if model == _GPT:
        parts, loss = gpt_parts(settings.layers, settings.width, settings.sequence), gpt_loss
    elif model in _RESNETS:
        parts = resnet_parts(settings.channels, *_RESNETS[model])
    else:
        raise InputError(f"unknown model {model!r}: known are {', '.join((*_RESNETS, _GPT))}")
    count = min(devices, len(parts))
    edges = [round(len(parts) * stage / count) for stage in range(count + 1)]
    return Network(stages=nn.ModuleList(nn.Sequential(*parts[a:b]) for a, b in pairwise(edges)), loss=loss)


def _mean(losses: Sequence[float]) -> float | None:
    """The mean (None: a run has diverged)."""
    mean = fmean(losses)
    return mean if math.isfinite(mean) else None


def _gap(found: Mapping[str, Any], name: str) -> float:
    """By how much the last training loss is above the dense one; infinite after a divergence."""
    last, dense = (found["variants"][one]["losses"][-1] for one in (name, _DENSE))
    return math.inf if last is None or dense is None else float(last / dense - 1.0)


def _text(gap: float) -> str:
    return f"{gap:+.1%}" if math.isfinite(gap) else "diverged"


def _checks(model: str, found: Mapping[str, Any], quick: bool) -> list[Check]:
    """What section 7.3 says of the model."""
    uniform, adaptive = _gap(found, _UNIFORM), _gap(found, _ADAPTIVE)
    if model == _GPT:
        claims = {
            "uniform top-k against dense": ("at most +0 %", uniform, uniform <= 0.0),
            "AdaTopK against dense": ("at most +0 %", adaptive, adaptive <= 0.0),
        }
    else:
        claims = {
            "AdaTopK against dense": (f"at most +{_LITTLE:.0%}".replace("%", " %"), adaptive, adaptive <= _LITTLE),
            "uniform top-k against dense": ("more than AdaTopK", uniform, uniform > adaptive),
        }
    return [
        Check(name=f"{model}: training loss, {name}", target=target, measured=_text(gap), passed=None if quick else passed)
        for name, (target, gap, passed) in claims.items()
    ]
