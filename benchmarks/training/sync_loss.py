"""``sync-loss``: held-out loss after equal time, or equal steps, under sync strategies, small networks on text and on images.

Replicas are those of ``farflung.testing.replicas``, in NumPy in one process; what a step takes is put on the clock afterwards: as
``sync-network`` measured it, relative to ASC-WFBP, or, without such a file, as the time line of ``farflung.sync`` predicts it. So
curves depend on measured times and real training, and not on this machine's speed. All strategies have the same optimizer,
rate and samples per step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.training.sync_loss_networks import MODELS, SyncLossSettings, TrainedNetwork, network_of
from farflung.errors import InputError
from farflung.job.spec import OptimizerSpec
from farflung.sync import LayerInfo, World, get_strategy, mean_step_seconds
from farflung.testing.replicas import Group, Task
from farflung.units import Bytes, Seconds

__all__ = ["SyncLoss", "exchange_share", "step_seconds", "time_to_loss"]

_ASC = "asc_wfbp"
_OF_IMAGES = frozenset({"images", "resnet-18"})
_EVERY_STEP = frozenset({_ASC, "ssgd", "wfbp"})
#: The largest difference of the loss at equal steps between partial sets and full synchronization.
_EQUAL_STEPS = 0.01
#: The backward's part of computing.
_BACKWARD = 2.0 / 3.0
#: Strategy -> its method in the ``dreamddp`` benchmark.
_METHODS = {"partial": "equal_number", "contiguous": "optimal", "free_sets": "free"}


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
        curves: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for task in settings.tasks:
            if task in _OF_IMAGES and not settings.images:
                continue
            curves[task], whole = {}, _whole(settings, seconds)
            every_step: list[dict[str, Any]] | None = None
            for label, case in cases.items():
                say(f"{task}: {label}")
                if case[0] in _EVERY_STEP and every_step and whole is None:  # these strategies have the same parameters
                    found = [point | {"seconds": point["steps"] * seconds[label]} for point in every_step]
                else:
                    found = _curve(settings, task, case, (seconds[label], whole))
                curves[task][label] = found
                every_step = found if case[0] in _EVERY_STEP else every_step
        figures: dict[str, Any] = {"step_seconds": seconds, "curves": curves}
        if settings.several:
            figures["time_to_loss"] = {task: time_to_loss(found) for task, found in curves.items()}
        if settings.plot:
            from benchmarks.training.sync_loss_plot import draw

            draw(figures, Path(settings.plot), _axes(settings))
        return _report(settings, figures)


def _axes(settings: SyncLossSettings) -> list[tuple[str, str]]:
    """What the panels of the picture show of each point."""
    over_steps = ("steps", "loss")
    if not settings.several:
        return [("seconds", "loss")]
    return [over_steps, ("seconds", "loss"), ("steps", "divergence")] if settings.measured else [over_steps]


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
        return _by_period(settings)
    runs = _measured(settings)
    own = [run for run in runs if run["model"] == settings.model]
    found = {}
    for name in settings.strategies:
        near = min((run for run in own if run["strategy"] == name), key=lambda run: abs(float(run["x"]) - 1.0), default=None)
        if near is None:
            raise InputError(f"measured = {settings.measured!r} has no run of {name} with {settings.model}: measure it, too")
        found[name] = float(near["seconds"])
    return found


def _measured(settings: SyncLossSettings) -> list[dict[str, Any]]:
    """The runs in the file of measurements.

    Raises:
        InputError: it can't be read, or holds other figures.
    """
    try:
        figures = json.loads(Path(settings.measured).read_text(encoding="utf-8"))["figures"]
        return list(figures["periods" if settings.several and "periods" in figures else "runs"])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"measured = {settings.measured!r} holds no figures of sync-network or dreamddp ({type(error).__name__})"
        ) from None


def _of_group(settings: SyncLossSettings) -> dict[int, dict[str, float]]:
    """Seconds of a step by H and method, as ``dreamddp`` has them for the model and as many workers as members.

    Raises:
        InputError: the measurements are those of one period, or have none of the model, the members and a period.
    """
    runs = _measured(settings)
    if any("workers" not in run for run in runs):
        raise InputError("measured seconds are those of one period: leave measured out, or periods")
    own = {
        run["sync_every"]: run["seconds"] for run in runs if (run["model"], run["workers"]) == (settings.model, settings.members)
    }
    if not own.keys() >= set(settings.periods):
        raise InputError(
            f"measured = {settings.measured!r} has no runs of {settings.model} with {settings.members} workers and all of the "
            "periods; choose others, or run dreamddp with them"
        )
    return own


def _by_period(settings: SyncLossSettings) -> dict[str, float]:
    own = _of_group(settings)
    return {
        label: float(own[period if period > 1 else settings.periods[0]][_METHODS.get(name, name)])
        for label, (name, period) in _cases(settings).items()
    }


def exchange_share(settings: SyncLossSettings) -> float:
    """Seconds of exchanging a layer over those of its backward: those of ``dreamddp``'s clock; 1 with any other clock."""
    if not (settings.several and settings.measured):
        return 1.0
    every = settings.periods[0]
    seconds = _of_group(settings)[every]
    exchange = (seconds["ssgd"] - seconds["local_sgd"]) / (1.0 - 1.0 / every)
    return exchange / (_BACKWARD * (seconds["ssgd"] - exchange))


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


def _whole(settings: SyncLossSettings, seconds: Mapping[str, float]) -> float | None:
    """Seconds of all curves (None: they have equal steps instead)."""
    return None if settings.several else settings.asc_steps * seconds[_ASC]


def _curve(
    settings: SyncLossSettings, task: str, case: tuple[str, int], clock: tuple[float, float | None]
) -> list[dict[str, Any]]:
    """Points of (seconds, steps, loss of each seed). ``clock``: seconds of a step, and of the curve (None: equal steps)."""
    (step, whole), share = clock, exchange_share(settings)
    found: list[dict[str, Any]] = [{"losses": [], "divergences": []} for _ in range(settings.points)]
    for seed in range(settings.seed, settings.seed + settings.seeds):
        network = _network(settings, task, seed)
        start = network.start()
        optimizer = OptimizerSpec(name="adamw", lr=settings.image_lr if task in _OF_IMAGES else settings.lr)
        layers = tuple(
            LayerInfo(nbytes=Bytes(a.nbytes), bp_seconds=Seconds(a.size), comm_seconds=Seconds(share * a.size)) for a in start
        )
        world = World(rank=0, members=settings.members, layers=layers)
        group = Group(_strategy(*case), world, Task(start=start, gradient=network.gradient, optimizer=optimizer))
        done = 0
        for number, point in enumerate(found, start=1):
            part = number / settings.points
            steps = round(settings.asc_steps * part) if whole is None else int(whole * part / step)
            spreads = []
            for _ in range(steps - done):
                group.run(1)
                spreads.append(group.spread())
            done = steps
            point["divergences"].append(fmean(spreads or [0.0]))
            mean = [np.mean([r.parameters[layer] for r in group.replicas], axis=0) for layer in range(len(start))]
            point["losses"].append(network.held_out(mean))
            point |= {"seconds": steps * step if whole is None else whole * part, "steps": steps}
    return [point | {"loss": fmean(point["losses"]), "divergence": fmean(point["divergences"])} for point in found]


def _network(settings: SyncLossSettings, task: str, seed: int) -> TrainedNetwork:
    if task not in MODELS:
        return network_of(settings, task, seed)
    from benchmarks.training.sync_loss_models import torch_network

    return torch_network(settings, task, seed)


def time_to_loss(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Seconds in which each curve reaches the largest of the last losses, along straight lines between its points."""
    goal = max(points[-1]["loss"] for points in curves.values())
    found = {}
    for label, points in curves.items():
        number = next(index for index, point in enumerate(points) if point["loss"] <= goal)
        after = before = points[number]
        if number:
            before = points[number - 1]
        fall = before["loss"] - after["loss"]
        share = (before["loss"] - goal) / fall if fall > 0 else 1.0
        found[label] = before["seconds"] + share * (after["seconds"] - before["seconds"])
    return found


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
        checks += _equal_steps(settings, task, last, curves)
    columns = ("task", "strategy", "s/step", "steps", "loss", "range of seeds")
    return Report(figures=figures, columns=columns, rows=rows, checks=checks)


def _equal_steps(
    settings: SyncLossSettings,
    task: str,
    last: Mapping[str, Mapping[str, Any]],
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[Check]:
    """Partial sets against full synchronization after equal steps, for each H: their losses and their divergences."""
    pairs = [
        (label, f"local_sgd, {period}")
        for label in last
        for name, _, period in [label.partition(", ")]
        if name not in ("", "local_sgd") and f"local_sgd, {period}" in last
    ]
    if not pairs:
        return []

    def apart(label: str) -> float:
        return fmean(point["divergence"] for point in curves[label])

    losses = {label: last[label]["loss"] / last[full]["loss"] - 1.0 for label, full in pairs}
    divergences = {label: apart(label) / apart(full) for label, full in pairs}
    worst, widest = max(losses, key=lambda one: losses[one]), max(divergences, key=lambda one: divergences[one])
    return [
        Check(
            name=f"{task}: loss of partial sets over local_sgd after equal steps, the worst of {len(losses)}",
            target=f"at most {_EQUAL_STEPS:+.0%}",
            measured=f"{losses[worst]:+.2%} ({worst})",
            passed=None if settings.quick else losses[worst] <= _EQUAL_STEPS,
        ),
        Check(
            name=f"{task}: divergence of partial sets over local_sgd, mean over all steps, the worst of {len(losses)}",
            target="less than 1 times",
            measured=f"{divergences[widest]:.2f} times ({widest})",
            passed=None if settings.quick else divergences[widest] < 1.0,
        ),
    ]
