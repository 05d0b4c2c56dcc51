"""``environments``: one pipeline whose workers have several releases of PyTorch, and JAX, each in an environment of its own.

A broker and workers run as processes of this machine, each worker with the interpreter of its environment. One step of plain SGD
with a rate of a power of two moves the weights by their gradients, and by so much that the weights themselves are rounding. These
gradients are compared with those of a plain PyTorch loop in this process, first without the workers that have JAX, then with all.
Then all workers train on a text together. Their losses stand beside those of PyTorch alone, in this process.
"""

from __future__ import annotations

import sys
import tempfile
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from benchmarks.harness.clusters import EngineCluster
from benchmarks.harness.models import Family, family
from benchmarks.training.engines import deviation
from farflung.api import train
from farflung.chaos.local_cluster import LocalCluster
from farflung.errors import InputError
from farflung.frontends.recipes import load_recipe
from farflung.job.spec import JobSpec, LimitSpec, OptimizerSpec
from farflung.testing.reference import PlainSettings, plain_loop

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Environments", "EnvironmentsSettings", "report_of", "workers_of"]

#: The largest deviation between releases of PyTorch, and with JAX; and that of the last loss.
_RELEASES, _MIXED, _LOSS = 2e-6, 2e-5, 0.01
#: A power of two: weights that it moves are gradients to the last bit but one.
_RATE = 2.0**20
_MODELS = ("gpt2", "llama", "bert", "resnet18")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentsSettings(Settings):
    """``environments``: of each worker, ``ENGINE`` or ``ENGINE=PYTHON``, the interpreter that has the engine's library.

    ``models``: those whose gradients are compared. ``text``: a file of text for the run of ``steps`` steps (empty: the source of
    a module of Python).
    """

    environments: tuple[str, ...] = ("torch", "jax")
    models: tuple[str, ...] = _MODELS
    steps: int = bounded(200)
    text: str = ""


class Environments:
    """Workers with different tensor libraries in one pipeline."""

    name = "environments"
    summary = "a pipeline of several releases of PyTorch, and JAX, in separate environments: gradients and a run"

    def settings(self, quick: bool) -> EnvironmentsSettings:
        """Quick: one model and few steps."""
        return EnvironmentsSettings(quick=True, models=("gpt2",), steps=3) if quick else EnvironmentsSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Compare gradients and losses.

        Raises:
            InputError: a model is unknown, or an interpreter does not exist.
            FarflungError: a worker can't join, or a run fails.
        """
        assert isinstance(settings, EnvironmentsSettings)
        workers = workers_of(settings.environments)
        models = [_model(name, settings) for name in settings.models]
        with tempfile.TemporaryDirectory() as folder, EngineCluster(Path(folder), workers) as cluster:
            versions = _versions(cluster)
            say(", ".join(f"{name}: {version}" for name, version in versions.items()))
            pipelines = {"releases of PyTorch": [name for name in workers if workers[name][0] == "torch"], "all": list(workers)}
            found = {
                title: _deviations(models, [name for name in workers if name not in names], cluster.ticket, say)
                for title, names in pipelines.items()
                if len(names) > 1
            }
            losses = {
                "mixed": _losses(settings, cluster.ticket, None),
                "alone": _losses(settings, None, 1),
            }
        return report_of(versions, found, losses)


def workers_of(environments: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return a worker's name -> its engine and interpreter.

    Raises:
        InputError: an interpreter does not exist.
    """
    found: dict[str, tuple[str, str]] = {}
    for number, text in enumerate(environments):
        engine, _, python = text.partition("=")
        if python and not Path(python).is_file():
            raise InputError(f"environments={text!r}: there is no interpreter {python!r}; make engine-environments installs some")
        found[f"{engine}-{number}"] = engine, python or sys.executable
    return found


def _model(name: str, settings: EnvironmentsSettings) -> Family:
    """ResNet-18 gets small images, and rows enough for batch normalization.

    A single activation whose rounding moves it across zero changes a gradient by 5 %, and large images have so many activations
    that one does (decision 48).
    """
    return family(name, quick=True, rows=16) if name == "resnet18" else family(name, quick=settings.quick, rows=4)


def _versions(cluster: LocalCluster) -> dict[str, str]:
    client = cluster.client()
    try:
        members: Any = client.status()["members"]
        return {str(member["name"]): str(member["versions"]["engine"]) for member in members}
    finally:
        client.close()


def _deviations(models: Sequence[Family], excluded: Sequence[str], ticket: str, say: Say) -> dict[str, float]:
    """Return the largest deviation of a gradient for each model, on the workers that are not ``excluded``."""
    found = {}
    for model in models:
        module = model.make()
        before = {name: parameter.detach().numpy().copy() for name, parameter in module.named_parameters()}
        job = JobSpec(limits=LimitSpec(exclude=tuple(excluded)))
        result = train(module, model.batch, steps=1, optimizer="sgd", lr=_RATE, ticket=ticket, job=job)
        after = result.state_dict()
        moved = {name: (array.astype(np.float64) - after[name]) / _RATE for name, array in before.items()}
        plain = plain_loop(model.make(), model.batch, steps=1, micro_batches=1, settings=PlainSettings()).gradients
        found[model.name] = deviation(moved, plain)
        say(f"{model.name} on {', '.join(result.plan.devices)}: gradients deviate by {found[model.name]:.1e}")
    return found


def _losses(settings: EnvironmentsSettings, ticket: str | None, workers: int | None) -> list[float]:
    args = {"vocab": 256, "sequence": 64, "layers": 2 if settings.quick else 4, "width": 64, "heads": 4, "dropout": 0.1}
    result = train(
        _seeded(load_recipe("gpt", args).train.factory),
        _windows(settings, int(args["sequence"])),
        steps=settings.steps,
        accumulate=2,
        optimizer=OptimizerSpec(name="adamw", lr=1e-3),
        clip_norm=1.0,
        seed=settings.seed,
        ticket=ticket,
        workers=workers,
    )
    return list(result.losses)


def _seeded(factory: Callable[[], nn.Module]) -> nn.Module:
    """Return a module whose weights every run begins with."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(1)
        return factory().train()


def _windows(settings: EnvironmentsSettings, sequence: int) -> Callable[[int, int], tuple[Any, ...]]:
    text = np.frombuffer(Path(settings.text or typing.__file__).read_bytes(), np.uint8)

    def batch(step: int, micro_batch: int) -> tuple[Any, ...]:
        random = np.random.default_rng([settings.seed, step, micro_batch])
        starts = random.integers(0, len(text) - sequence - 1, 4)
        windows = np.stack([text[start : start + sequence + 1] for start in starts]).astype(np.int64)
        return windows[:, :-1], windows[:, 1:]

    return batch


def report_of(
    versions: Mapping[str, str], found: Mapping[str, Mapping[str, float]], losses: Mapping[str, Sequence[float]]
) -> Report:
    """Judge the deviations of gradients by pipeline and model, and the losses of a run."""
    kinds = {version.partition(" ")[0] for version in versions.values()}
    rows: list[tuple[str, float, float]] = []
    for title, deviations in found.items():
        most = _MIXED if title == "all" and kinds != {"torch"} else _RELEASES
        rows += [(f"gradients of {name}, {title}", measured, most) for name, measured in deviations.items()]
    apart = abs(losses["mixed"][-1] / losses["alone"][-1] - 1)
    rows.append(("last loss, all / PyTorch alone - 1", apart, _LOSS))
    checks = [
        Check(name=name, target=f"at most {most:g}", measured=f"{measured:.2g}", passed=measured <= most)
        for name, measured, most in rows
    ]
    releases = {version for version in versions.values() if version.startswith("torch")}
    several = len(releases) > 1 and "jax" in kinds
    checks.append(
        Check(
            name="workers",
            target="two releases of PyTorch, and JAX",
            measured=", ".join(sorted(set(versions.values()))),
            passed=True if several else None,
            note="" if several else "name other environments: --set environments=...",
        )
    )
    figures = {
        "versions": dict(versions),
        "deviations": {k: dict(v) for k, v in found.items()},
        "losses": dict(losses),
        "apart": apart,
    }
    return Report(figures=figures, columns=("figure", "measured", "at most"), rows=rows, checks=tuple(checks))
