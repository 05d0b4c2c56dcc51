"""``sync-loss``: held-out loss after equal time, or equal steps, under sync strategies, small networks on text and on images.

Replicas are those of ``farflung.testing.replicas``, in NumPy in one process; what a step takes is put on the clock afterwards: as
``sync-network`` measured it, relative to ASC-WFBP, or, without such a file, as the time line of ``farflung.sync`` predicts it. So
curves depend on measured times and real training, and not on this machine's speed. All strategies have the same optimizer,
rate and samples per step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.training.sync_strategies import ByteNetwork, SyncStrategiesSettings
from farflung.errors import InputError
from farflung.job.spec import OptimizerSpec
from farflung.sync import LayerInfo, World, get_strategy, mean_step_seconds
from farflung.testing.replicas import Group, Layers, Task
from farflung.units import Bytes, Seconds

__all__ = ["PixelNetwork", "SyncLoss", "SyncLossSettings", "step_seconds"]

Array = npt.NDArray[Any]
_ASC = "asc_wfbp"
_EVERY_STEP = frozenset({_ASC, "ssgd", "wfbp"})
#: The largest difference of the loss at equal steps between partial sets and full synchronization.
_EQUAL_STEPS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncLossSettings(Settings):
    """What is trained on, and the clock.

    ``periods``: values of H. One has its curves at equal time. Several have theirs at equal steps (``asc_steps``), as in
    DreamDDP's Figures 10 to 14, and the time of a step is predicted for links with x = 1 at the first one.
    ``text``, ``held_text``: files of text (empty: Python's own sources, and their last tenth). ``images``: a folder with
    ``train`` and ``test``, in each a folder per class (empty: no images). ``measured``: the JSON of ``sync-network``, and
    ``model`` in it (empty: predicted, at x = 1). ``asc_steps``: how many steps of ASC-WFBP the time is enough for. ``lr``,
    ``image_lr``: AdamW's rates, constant and the same for all strategies. ``hidden``: layers of the networks beside those at
    both ends; a network has at least H layers.
    """

    strategies: tuple[str, ...] = (_ASC, "local_sgd", "contiguous", "free_sets")
    text: str = ""
    held_text: str = ""
    images: str = ""
    measured: str = ""
    model: str = "gpt2"
    seeds: int = 3
    members: int = 4
    periods: tuple[int, ...] = (5,)
    asc_steps: int = 200
    points: int = 8
    samples: int = 32
    width: int = 96
    hidden: int = 4
    lr: float = 2e-3
    image_lr: float = 5e-4
    plot: str = ""

    @property
    def several(self) -> bool:
        """Whether there are several values of H."""
        return len(self.periods) > 1


class _Network(Protocol):
    def start(self) -> Layers:
        """First parameters."""

    def gradient(self, parameters: Sequence[Array], step: int, member: int) -> tuple[float, Layers]:
        """Loss and gradients on a member's samples."""

    def held_out(self, parameters: Sequence[Array]) -> float:
        """Loss on what is not trained on."""


class SyncLoss:
    """Curves of loss over time."""

    name = "sync-loss"
    summary = "held-out loss after equal wall-clock time under sync strategies, on text and images"

    def settings(self, quick: bool) -> SyncLossSettings:
        """Quick: a few steps of a tiny network on Python's own sources."""
        if quick:
            return SyncLossSettings(quick=True, seeds=1, asc_steps=6, points=2, samples=4, width=8)
        return SyncLossSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Train.

        Raises:
            InputError: a file or folder is missing, or holds no figures of a strategy.
        """
        assert isinstance(settings, SyncLossSettings)
        cases, seconds = _cases(settings), step_seconds(settings)
        tasks = ["text", *(["images"] if settings.images else [])]
        curves: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for task in tasks:
            curves[task] = {}
            for label, case in cases.items():
                say(f"{task}: {label}")
                curves[task][label] = _curve(settings, task, case, (seconds[label], _whole(settings, seconds)))
        figures = {"step_seconds": seconds, "curves": curves}
        if settings.plot:
            from benchmarks.training.sync_loss_plot import draw

            draw(figures, Path(settings.plot), "steps" if settings.several else "seconds")
        return _report(settings, figures)


def _cases(settings: SyncLossSettings) -> dict[str, tuple[str, int]]:
    """label -> strategy and H."""
    if not settings.several:
        return {name: (name, settings.periods[0]) for name in settings.strategies}
    found = {name: (name, 1) for name in settings.strategies if name in _EVERY_STEP}
    rest = [name for name in settings.strategies if name not in _EVERY_STEP]
    return found | {f"{name}, H = {period}": (name, period) for period in settings.periods for name in rest}


def step_seconds(settings: SyncLossSettings) -> dict[str, float]:
    """Seconds of a step by label: of each strategy at x = 1, or, with ``periods``, of each of them.

    Raises:
        InputError: the file of measurements can't be read, has none of a strategy, or several periods have no measurement.
    """
    if not settings.measured:
        return _predicted(settings)
    if settings.several:
        raise InputError("measured seconds are those of one period: leave measured out, or periods")
    try:
        runs = json.loads(Path(settings.measured).read_text(encoding="utf-8"))["figures"]["runs"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"measured = {settings.measured!r} holds no figures of sync-network ({type(error).__name__})") from None
    own = [run for run in runs if run["model"] == settings.model]
    found = {}
    for name in settings.strategies:
        near = min((run for run in own if run["strategy"] == name), key=lambda run: abs(float(run["x"]) - 1.0), default=None)
        if near is None:
            raise InputError(f"measured = {settings.measured!r} has no run of {name} with {settings.model}: measure it, too")
        found[name] = float(near["seconds"])
    return found


def _predicted(settings: SyncLossSettings) -> dict[str, float]:
    """On layers like those of a transformer: at least twelve equal ones, x = 1, the forward half of the backward."""
    layer = LayerInfo(nbytes=Bytes(4e6), bp_seconds=Seconds(1.0), comm_seconds=Seconds(float(settings.periods[0])))
    world = World(rank=0, members=settings.members, layers=(layer,) * max(12, settings.hidden))
    return {
        label: float(mean_step_seconds(_strategy(name, period), world, 8 * period, forward_seconds=6.0))
        for label, (name, period) in _cases(settings).items()
    }


def _strategy(name: str, period: int) -> Any:
    return get_strategy(name, **({} if name in _EVERY_STEP else {"sync_every": period}))


class PixelNetwork:
    """Classifies small images: tanh layers with residuals on pixels, soft-max. All layers are matrices."""

    def __init__(self, settings: SyncLossSettings, data: Mapping[str, tuple[Array, Array]], seed: int) -> None:
        self._settings, self._data, self._seed = settings, data, seed

    def start(self) -> Layers:
        """First parameters."""
        random, width = np.random.default_rng(self._seed), self._settings.width
        inputs, classes = self._data["train"][0].shape[1], int(self._data["train"][1].max()) + 1
        shapes = [(inputs, width), *[(width, width)] * self._settings.hidden, (width, classes)]
        return [(random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32) for shape in shapes]

    def gradient(self, parameters: Sequence[Array], step: int, member: int) -> tuple[float, Layers]:
        """Mean loss in nats on the member's samples of the step, and its gradient."""
        x, y = self._data["train"]
        chosen = np.random.default_rng((self._seed, step, member)).integers(0, len(y), self._settings.samples)
        return self._both(parameters, x[chosen], y[chosen])

    def held_out(self, parameters: Sequence[Array]) -> float:
        """Mean loss in nats on the test images."""
        return self._both(parameters, *self._data["test"])[0]

    def _both(self, parameters: Sequence[Array], x: Array, y: Array) -> tuple[float, Layers]:
        first, *hidden, last = parameters
        outs = [np.tanh(x @ first)]
        for weight in hidden:
            outs.append(outs[-1] + np.tanh(outs[-1] @ weight))
        scores = outs[-1] @ last
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        rows = np.arange(len(y))
        loss = float(-np.log(shares[rows, y] + 1e-30).mean())
        delta = shares
        delta[rows, y] -= 1
        delta /= len(y)
        grads = [outs[-1].T @ delta]
        delta = delta @ last.T
        for index in range(len(hidden) - 1, -1, -1):
            inner = delta * (1 - (outs[index + 1] - outs[index]) ** 2)
            grads.insert(0, outs[index].T @ inner)
            delta = delta + inner @ hidden[index].T
        return loss, [x.T @ (delta * (1 - outs[0] ** 2)), *grads]


def _whole(settings: SyncLossSettings, seconds: Mapping[str, float]) -> float | None:
    """Seconds of all curves (None: they have equal steps instead)."""
    return None if settings.several else settings.asc_steps * seconds[_ASC]


def _curve(
    settings: SyncLossSettings, task: str, case: tuple[str, int], clock: tuple[float, float | None]
) -> list[dict[str, Any]]:
    """Points of (seconds, steps, loss of each seed). ``clock``: seconds of a step, and of the curve (None: equal steps)."""
    step, whole = clock
    found: list[dict[str, Any]] = [{"losses": []} for _ in range(settings.points)]
    for seed in range(settings.seed, settings.seed + settings.seeds):
        network = _network(settings, task, seed)
        start = network.start()
        optimizer = OptimizerSpec(name="adamw", lr=settings.image_lr if task == "images" else settings.lr)
        layers = tuple(LayerInfo(nbytes=Bytes(a.nbytes), bp_seconds=Seconds(a.size), comm_seconds=Seconds(a.size)) for a in start)
        world = World(rank=0, members=settings.members, layers=layers)
        group = Group(_strategy(*case), world, Task(start=start, gradient=network.gradient, optimizer=optimizer))
        done = 0
        for number, point in enumerate(found, start=1):
            part = number / settings.points
            steps = round(settings.asc_steps * part) if whole is None else int(whole * part / step)
            group.run(steps - done)
            done = steps
            mean = [np.mean([r.parameters[layer] for r in group.replicas], axis=0) for layer in range(len(start))]
            point["losses"].append(network.held_out(mean))
            point |= {"seconds": steps * step if whole is None else whole * part, "steps": steps}
    return [point | {"loss": fmean(point["losses"])} for point in found]


def _network(settings: SyncLossSettings, task: str, seed: int) -> _Network:
    if task == "images":
        return PixelNetwork(settings, {part: _pictures(Path(settings.images) / part) for part in ("train", "test")}, seed)
    small = SyncStrategiesSettings(samples=settings.samples, width=settings.width, hidden_layers=settings.hidden)
    return ByteNetwork(small, _text(settings.text), seed, held=_text(settings.held_text) if settings.held_text else b"")


def _text(path: str) -> bytes:
    if not path:
        from benchmarks.training.sync_strategies import standard_text

        return standard_text()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"the text {path} can't be read: {error.strerror}") from None


_PICTURES: dict[Path, tuple[Array, Array]] = {}


def _pictures(folder: Path) -> tuple[Array, Array]:
    """(pixels in [-1, 1], class numbers) of a folder per class; 16 x 16 in three colours."""
    if folder not in _PICTURES:
        from PIL import Image

        classes = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        if not classes:
            raise InputError(f"images: {folder} has no folder per class; give a folder with train and test in it")
        pixels, labels = [], []
        for number, kind in enumerate(classes):
            for file in sorted(kind.iterdir()):
                with Image.open(file) as image:
                    pixels.append(np.asarray(image.convert("RGB").resize((16, 16)), np.float32).reshape(-1) / 127.5 - 1)
                labels.append(number)
        _PICTURES[folder] = np.stack(pixels), np.array(labels)
    return _PICTURES[folder]


def _report(settings: SyncLossSettings, figures: dict[str, Any]) -> Report:
    rows, checks = [], []
    for task, curves in figures["curves"].items():
        last = {name: points[-1] for name, points in curves.items()}
        for name, point in last.items():
            spread = max(point["losses"]) - min(point["losses"])
            rows.append((task, name, figures["step_seconds"][name], point["steps"], point["loss"], spread))
        best = last.get("free_sets")
        for other in (_ASC, "local_sgd"):
            if best is not None and other in last:
                lower = all(a < b for a, b in zip(best["losses"], last[other]["losses"], strict=True))
                checks.append(
                    Check(
                        name=f"{task}: free sets against {other} after equal time",
                        target="lower loss for every seed",
                        measured=f"{best['loss']:.3f} against {last[other]['loss']:.3f}",
                        passed=None if settings.quick else lower,
                    )
                )
        checks += _equal_steps(settings, task, last)
    columns = ("task", "strategy", "s/step", "steps", "loss", "range of seeds")
    return Report(figures=figures, columns=columns, rows=rows, checks=checks)


def _equal_steps(settings: SyncLossSettings, task: str, last: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """Partial sets against full synchronization after equal steps, for each H."""
    gaps = {
        label: point["loss"] / last[f"local_sgd, {period}"]["loss"] - 1.0
        for label, point in last.items()
        for name, _, period in [label.partition(", ")]
        if name not in ("", "local_sgd") and f"local_sgd, {period}" in last
    }
    if not gaps:
        return []
    label = max(gaps, key=lambda one: gaps[one])
    return [
        Check(
            name=f"{task}: loss of partial sets over local_sgd after equal steps, the worst of {len(gaps)}",
            target=f"at most {_EQUAL_STEPS:+.0%}",
            measured=f"{gaps[label]:+.2%} ({label})",
            passed=None if settings.quick else gaps[label] <= _EQUAL_STEPS,
        )
    ]
