"""``resume``: does a run that ends at a random step and resumes on another number of machines give the same bits?"""

from __future__ import annotations

import io
import random
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.clusters import bundle_of
from benchmarks.harness.text_model import made_up_text
from farflung.chaos.local_cluster import Finished, LocalCluster
from farflung.engines.base import Array
from farflung.ids import new_id
from farflung.job.spec import CheckpointSpec, DataSpec, JobSpec, ModelSpec, OptimizerSpec, PlanSpec
from farflung.messages.submission import Bundle

__all__ = ["Resume", "ResumeSettings"]

_TARGET = 20
_PRECISIONS = ("float32", "bf16", "fp16")
_SAMPLES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeSettings(Settings):
    """``trials`` runs of ``steps`` steps, each on two numbers of machines between 1 and ``workers``."""

    trials: int = _TARGET
    workers: int = 4
    steps: int = 12
    sequence: int = 32


class Resume:
    """Losses of each step (every sample is different, so equal losses mean equal samples) and weights, against one whole run."""

    name = "resume"
    summary = "runs that resume at a random step on another number of machines, against one run on one machine"

    def settings(self, quick: bool) -> ResumeSettings:
        """Quick: two trials on at most two machines."""
        return ResumeSettings(quick=True, trials=2, workers=2, steps=4) if quick else ResumeSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Start processes and train.

        Raises:
            FarflungError: a process ends early, or a run fails.
        """
        assert isinstance(settings, ResumeSettings)
        trials = [_Trial.drawn(number, settings) for number in range(settings.trials)]
        found: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory(prefix="farflung-bench-") as place:
            folder = Path(place)
            data = {"text": made_up_text(folder, settings.sequence, _SAMPLES), "shards": _shards(folder, settings.sequence)}
            names = [f"worker-{index}" for index in range(settings.workers)]
            with LocalCluster(folder / "cluster", names, data=folder) as cluster:
                runs = _Runs(cluster, folder, data, settings)
                for trial in trials:
                    found.append(runs.compare(trial))
                    say(f"{found[-1]}")
        equal = sum(one["equal"] for one in found)
        check = Check(
            name="losses and weights equal those of one run on one machine",
            target=f"{_TARGET} of {_TARGET}",
            measured=f"{equal} of {len(found)}",
            passed=None if settings.quick or len(found) < _TARGET else equal == len(found),
        )
        columns = ("data", "precision", "step", "machines before", "after", "equal")
        rows = [(f["data"], f["precision"], f["step"], f["before"], f["after"], f["equal"]) for f in found]
        return Report(figures={"trials": found}, columns=columns, rows=rows, checks=(check,))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """The run ends after ``step`` steps on ``before`` machines, and resumes on ``after`` machines."""

    data: str
    precision: str
    step: int
    before: int
    after: int

    @classmethod
    def drawn(cls, number: int, settings: ResumeSettings) -> _Trial:
        chance = random.Random(1000 * settings.seed + number)
        before, after = chance.sample(range(1, settings.workers + 1), 2)
        precision = _PRECISIONS[number % len(_PRECISIONS)]
        data = ("text", "shards")[number % 2]
        return cls(data=data, precision=precision, step=chance.randrange(1, settings.steps), before=before, after=after)


class _Runs:
    """The runs of one cluster. Graphs and whole runs are made once for each kind of job."""

    def __init__(self, cluster: LocalCluster, folder: Path, data: Mapping[str, DataSpec], settings: ResumeSettings) -> None:
        self._cluster, self._folder, self._data, self._settings = cluster, folder, data, settings
        self._bundles: dict[tuple[str, str], Bundle] = {}
        self._whole: dict[tuple[str, str], tuple[tuple[float, ...], Mapping[str, Array]]] = {}

    def compare(self, trial: _Trial) -> dict[str, Any]:
        """Run ``trial``; return what it was, and whether all bits are those of the whole run."""
        kind = trial.data, trial.precision
        if kind not in self._whole:
            whole = self._run(trial, workers=1, steps=self._settings.steps)
            self._whole[kind] = _losses(whole), whole.states()
        losses, states = self._whole[kind]
        first = self._run(trial, workers=trial.before, steps=trial.step)
        rest = self._run(trial, workers=trial.after, steps=self._settings.steps, resume=first.folder.name)
        stages = [len({stage.device for stage in run.plan.stages}) for run in (first, rest)]
        same_losses = (*_losses(first), *_losses(rest)) == losses
        found = rest.states()
        same_weights = found.keys() == states.keys() and all(found[name].tobytes() == states[name].tobytes() for name in states)
        return {
            "data": trial.data,
            "precision": trial.precision,
            "step": trial.step,
            "before": stages[0],
            "after": stages[1],
            "losses": same_losses,
            "weights": same_weights,
            "equal": same_losses and same_weights and stages == [trial.before, trial.after],
        }

    def _run(self, trial: _Trial, *, workers: int, steps: int, resume: str = "") -> Finished:
        kind = trial.data, trial.precision
        if kind not in self._bundles:
            self._bundles[kind] = bundle_of(self._job(trial), base=self._folder)
        bundle = self._bundles[kind]
        changes = {"workers": workers, "steps": steps, "checkpoint": CheckpointSpec(resume=resume)}
        return self._cluster.run(replace(bundle, run=new_id("run"), job=bundle.job.model_copy(update=changes)))

    def _job(self, trial: _Trial) -> JobSpec:
        settings = self._settings
        args = {"vocab": 257, "sequence": settings.sequence, "layers": 4, "width": 32, "heads": 2}
        document = {"precision": trial.precision, "loss_scale": {"initial": 2.0**20}} if trial.precision == "fp16" else {}
        return JobSpec.model_validate(
            {
                "precision": trial.precision,
                **document,
                "name": "resume",
                "seed": settings.seed,
                "micro_batch_sizes": (2, 3),
                "threads": settings.threads,
                "model": ModelSpec(recipe="gpt", args={**args}),
                "data": self._data[trial.data],
                "optimizer": OptimizerSpec(name="adamw", lr=1e-2),
                "plan": PlanSpec(planner="equal_compute"),
            }
        )


def _losses(run: Finished) -> tuple[float, ...]:
    return tuple(step.loss for step in run.steps)


def _shards(folder: Path, sequence: int) -> DataSpec:
    """Write two WebDataset shards with texts that differ, and say how they are read."""
    (folder / "shards").mkdir()
    for number in range(2):
        with tarfile.open(folder / "shards" / f"{number}.tar", "w") as tar:
            for index in range(_SAMPLES // 2):
                text = "".join(chr(97 + (5 * i + (number + 1) * (index + 3) * i // 7) % 26) for i in range(sequence + 1)).encode()
                member = tarfile.TarInfo(f"{number}-{index:04}.txt")
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text))
    return DataSpec(kind="dataset", path="shards", text="txt", sequence=sequence)
