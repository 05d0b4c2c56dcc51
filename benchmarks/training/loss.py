"""``loss``: what compression costs in loss, against bytes and against time, from scratch and in fine-tuning.

Each variant trains the same model on the same batches from the same weights. What is measured where:

- Losses and bytes: training on in-process workers under the very plan and codecs of four workers in two regions. Where a
  stage runs does not change what it computes, so these are the losses that the processes would reach.
- Evaluation sends dense values, as in the runtime; training losses are those that the compressed values give.
- Seconds of a step: short runs of the same plan and codecs on real worker processes over the emulated links.
- Time to a loss: (steps until then) x (median seconds of a step). It is computed, not measured in one piece.

With a ``rate`` all links between devices have it, variants other than dense may train ``longer``, and the time in which ``auto``
reaches what dense training ends with is held against dense training's.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from benchmarks.harness.clusters import bundle_of
from benchmarks.harness.inprocess import InProcess, PlannedRun, run_planned
from benchmarks.training.compression import gpt_job, with_codec
from farflung.chaos.local_cluster import LocalCluster
from farflung.cluster import Topology
from farflung.data import Loader, open_source
from farflung.engines import get_engine
from farflung.engines.base import Array
from farflung.errors import InputError
from farflung.graph.ir import Graph, StateKind
from farflung.job.spec import CodecSpec, DataSpec, EvaluateSpec, JobSpec, PlanSpec
from farflung.messages.submission import Bundle
from farflung.planners import get_planner
from farflung.units import BytesPerSecond

__all__ = ["Loss", "LossSettings", "codec_of", "time_to"]

_EVAL_STEP = -1
_SOONER = 2.0
_ROTATED = ("int8", "int4", "int2")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings(Settings):
    """A byte-level GPT. ``data`` and ``tune``: text files (empty: sources and texts of the Python standard library).

    ``variants``: ``dense``, a codec's name, or ``topk`` and ``adatopk`` with a ratio. ``timed_steps`` 0: no processes, no times.
    ``rate``: of every link between two devices, e.g. ``80 Mbit/s`` (empty: the topology's). ``longer``: how many times as many
    steps other variants take as dense, so that they can reach its loss.
    """

    layers: int = 4
    width: int = 144
    heads: int = 4
    sequence: int = 64
    rows: int = 12
    micro_batches: int = 4
    steps: int = 300
    tune_steps: int = 100
    points: int = 10
    eval_batches: int = 8
    lr: float = 3e-3
    tune_lr: float = 5e-4
    data: str = ""
    tune: str = ""
    timed_steps: int = bounded(6)
    topology: str = "local4-two-regions"
    variants: tuple[str, ...] = (
        "dense",
        "fp16",
        "int8",
        "int4",
        "topk-3",
        "topk-10",
        "topk-30",
        "topk-100",
        "adatopk-3",
        "adatopk-10",
        "adatopk-30",
        "adatopk-100",
    )
    rate: str = ""
    longer: float = 1.0
    plot: str = ""


class Loss:
    """Evaluation loss over steps, bytes and time for each variant, from scratch and in fine-tuning."""

    name = "loss"
    summary = "loss against bytes and time: dense, casts, top-k; from scratch and in fine-tuning"

    def settings(self, quick: bool) -> LossSettings:
        """Quick: a tiny model, three variants, no processes."""
        if quick:
            return LossSettings(
                quick=True,
                layers=2,
                width=32,
                sequence=16,
                rows=2,
                micro_batches=2,
                steps=4,
                tune_steps=2,
                points=2,
                eval_batches=1,
                timed_steps=0,
                variants=("dense", "fp16", "topk-10"),
            )
        return LossSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Train all variants.

        Raises:
            FarflungError: a run fails, or data are missing.
        """
        import torch

        assert isinstance(settings, LossSettings)
        before = torch.get_num_threads()
        torch.set_num_threads(settings.threads)
        try:
            with tempfile.TemporaryDirectory(prefix="farflung-bench-") as folder:
                figures = _Study(settings, Path(folder), say).figures()
        finally:
            torch.set_num_threads(before)
        if settings.plot:
            from benchmarks.training.loss_plot import draw

            draw(figures, Path(settings.plot))
        return Report(figures=figures, columns=_COLUMNS, rows=_rows(figures), checks=_checks(settings, figures))


_COLUMNS = ("phase", "variant", "eval loss", "train loss", "MB/step", "s/step", "MB to dense's loss + 0.1", "s to it")


def codec_of(variant: str) -> CodecSpec:
    """``dense``, ``fp16``, ``topk-30``, ``int4-rotated``, ``auto-0.2`` ... as a codec.

    Raises:
        InputError: the ratio is no number.
    """
    name, _, ratio = variant.partition("-")
    if not ratio:
        return CodecSpec(name="identity" if name == "dense" else name)
    if name in _ROTATED and ratio == "rotated":
        return CodecSpec(name=name, rotate=True)
    try:
        return CodecSpec(name=name, error=float(ratio)) if name == "auto" else CodecSpec(name=name, ratio=float(ratio))
    except ValueError:
        raise InputError(f"variant {variant!r}: write a codec's name, or name-ratio as in topk-30") from None


def time_to(curve: Sequence[Mapping[str, float]], loss: float, key: str) -> float | None:
    """The value of ``key`` at the first point whose evaluation loss is at most ``loss`` (None: never reached)."""
    return next((float(point[key]) for point in curve if point["eval_loss"] <= loss), None)


class _Study:
    def __init__(self, settings: LossSettings, folder: Path, say: Say) -> None:
        self._settings = settings
        self._folder = folder
        self._say = say
        self._topology = _topology(settings)
        job = _job(settings, self._data(settings.data, "scratch", "*.py"), settings.steps, settings.lr)
        self._bundle = bundle_of(job, base=folder, topology=self._topology, emulate=True)

    def figures(self) -> dict[str, Any]:
        """Everything that the report holds."""
        settings = self._settings
        seconds = self._seconds()
        scratch_job = self._bundle.job
        first = _initial(self._bundle.graph, scratch_job.seed)
        scratch, trained = self._phase("scratch", scratch_job, first, seconds)
        tune_data = self._data(settings.tune, "tuning", "pydoc_data/*.py")
        tune_job = _job(settings, tune_data, settings.tune_steps, settings.tune_lr)
        tuned, _ = self._phase("fine-tuning", tune_job, trained, seconds)
        return {
            "parameters": sum(state.spec.numel for state in self._bundle.graph.parameters),
            "data": scratch_job.data.path + " " + scratch_job.data.glob,
            "fine_tuning_data": tune_data.path + " " + tune_data.glob,
            "seconds_per_step": seconds,
            "phases": {"scratch": scratch, "fine-tuning": tuned},
        }

    def _data(self, path: str, folder: str, glob: str) -> DataSpec:
        """The file ``path``, copied to a ``folder`` where workers may read; or texts of the standard library."""
        sequence = self._settings.sequence
        if not path:
            return DataSpec(kind="text", path="{stdlib}", glob=glob, sequence=sequence)
        try:
            (self._folder / folder).mkdir()
            shutil.copy(path, self._folder / folder)
        except OSError as error:
            raise InputError(f"no text to train on in {path}: {error.strerror}; give a file") from None
        return DataSpec(kind="text", path=f"{folder}/{Path(path).name}", sequence=sequence)

    def _seconds(self) -> dict[str, float]:
        """Median seconds of a step of each variant on real processes over the emulated links."""
        settings = self._settings
        if not settings.timed_steps:
            return {}
        found: dict[str, float] = {}
        job = self._bundle.job.model_copy(update={"steps": settings.timed_steps, "evaluate": EvaluateSpec()})
        base = Bundle(run="", job=job, graphs=self._bundle.graphs, topology=self._topology)
        with LocalCluster(self._folder / "cluster", self._topology.names, data=self._folder) as cluster:
            for variant in settings.variants:
                finished = cluster.run(with_codec(base, codec_of(variant), emulate=True))
                found[variant] = median(step.seconds for step in finished.steps[1:])
                self._say(f"{variant}: {found[variant]:.2f} s per step on the emulated links")
        return found

    def _phase(
        self, phase: str, job: JobSpec, first: Mapping[str, Array], seconds: Mapping[str, float]
    ) -> tuple[dict[str, Any], Mapping[str, Array]]:
        """Train every variant from the weights ``first``: (curves by variant, what dense training ended with)."""
        curves: dict[str, Any] = {}
        dense = first
        for variant in self._settings.variants:
            steps = job.steps if variant == "dense" else round(self._settings.longer * job.steps)
            result = self._train(job.model_copy(update={"steps": steps}), variant, first, phase)
            curves[variant] = _curve(result, seconds.get(variant))
            if variant == "dense":
                dense = result.merged_states
            self._say(f"{phase}: {variant}: evaluation loss {curves[variant][-1]['eval_loss']:.4f}")
        return curves, dense

    def _train(self, job: JobSpec, variant: str, first: Mapping[str, Array], phase: str) -> InProcess:
        codec = codec_of(variant)
        chosen = job.model_copy(update={"codec": codec.model_copy(update={"phase": phase}) if codec.name == "auto" else codec})
        graph = self._bundle.graph
        plan = get_planner(chosen.plan.planner).plan(graph, self._topology, job=chosen)
        given = PlannedRun(
            graph=graph,
            plan=plan,
            job=chosen,
            states=first,
            batches=_batches(graph, chosen, self._folder),
            evaluation=self._bundle.eval_graph,
            rows=max(chosen.micro_batch_sizes),
        )
        return run_planned(given)


def _topology(settings: LossSettings) -> Topology:
    found = Topology.preset(settings.topology)
    if not settings.rate:
        return found
    own = np.eye(len(found.names), dtype=np.bool_)
    return Topology.from_matrices(found.alpha, np.where(own, found.beta, BytesPerSecond.parse(settings.rate)), found.devices)


def _checks(settings: LossSettings, figures: Mapping[str, Any]) -> list[Check]:
    """How soon ``auto`` is where dense training ends."""
    checks = []
    for phase, curves in figures["phases"].items():
        if not {"dense", "auto"} <= set(curves) or not figures["seconds_per_step"]:
            continue
        goal = curves["dense"][-1]["eval_loss"]
        needed, dense = (time_to(curves[name], goal, "seconds") for name in ("auto", "dense"))
        assert dense is not None
        measured = "never" if needed is None else f"{dense / needed:.2f} x shorter ({needed:.0f} s against {dense:.0f} s)"
        checks.append(
            Check(
                name=f"{phase}: time of auto to the loss that dense training ends with",
                target=f"{_SOONER:g} x shorter" + (f" at {settings.rate}" if settings.rate else ""),
                measured=measured,
                passed=None if settings.quick or not settings.rate else needed is not None and dense >= _SOONER * needed,
            )
        )
    return checks


def _job(settings: LossSettings, data: DataSpec, steps: int, lr: float) -> JobSpec:
    args = {"layers": settings.layers, "width": settings.width, "heads": settings.heads, "sequence": settings.sequence, "tied": 0}
    job = gpt_job(args, (settings.rows,) * settings.micro_batches, data)
    every = max(1, steps // settings.points)
    return job.model_copy(
        update={
            "steps": steps,
            "seed": settings.seed,
            "threads": settings.threads,
            "plan": PlanSpec(planner="equal_number"),
            "optimizer": job.optimizer.model_copy(update={"lr": lr}),
            "evaluate": EvaluateSpec(every=every, batches=settings.eval_batches),
        }
    )


def _initial(graph: Graph, seed: int) -> dict[str, Array]:
    names = [state.name for state in graph.states if state.kind is not StateKind.CONSTANT]
    return get_engine("torch").initial_states(graph, seed, names)


def _batches(graph: Graph, job: JobSpec, folder: Path) -> Callable[[int, int], Mapping[str, Array]]:
    """Training batches of step >= 0; evaluation batches, from text that is never trained on, as step -1."""
    order = dict(graph.meta)["inputs"].split(",")
    specs = {op.name: op.outputs[0] for op in graph.placeholders}
    placeholders = {name: specs[name] for name in order}
    sizes = job.micro_batch_sizes
    train = Loader(job.data, open_source(job.data, folder), placeholders, sizes, job.seed)
    held_out = Loader(job.data, open_source(job.data, folder, split="eval"), placeholders, sizes[:1], 1)

    def batch(step: int, micro_batch: int) -> Mapping[str, Array]:
        return held_out.batch(micro_batch, 0) if step == _EVAL_STEP else train.batch(step, micro_batch)

    return batch


def _curve(result: InProcess, seconds: float | None) -> list[dict[str, float]]:
    """A point for each evaluation: step, losses, bytes sent so far, and seconds so far at the measured pace."""
    points: list[dict[str, float]] = []
    sent = 0
    records = {record.step: record for record in result.records}
    done = 0
    for evaluation in result.evaluations:
        while done < evaluation.step:
            sent += records[done].total_bytes
            done += 1
        point = {
            "step": done,
            "eval_loss": evaluation.loss,
            "train_loss": records[done - 1].loss,
            "bytes": sent,
        }
        if seconds is not None:
            point["seconds"] = done * seconds
        points.append(point)
    return points


def _rows(figures: Mapping[str, Any]) -> list[list[object]]:
    rows: list[list[object]] = []
    for phase, curves in figures["phases"].items():
        goal = min(point["eval_loss"] for point in next(iter(curves.values()))) + 0.1
        for variant, curve in curves.items():
            last = curve[-1]
            needed = time_to(curve, goal, "bytes")
            seconds = time_to(curve, goal, "seconds") if "seconds" in last else None
            pace = figures["seconds_per_step"].get(variant)
            rows.append(
                [
                    phase,
                    variant,
                    last["eval_loss"],
                    last["train_loss"],
                    last["bytes"] / last["step"] / 1e6,
                    "-" if pace is None else pace,
                    "never" if needed is None else needed / 1e6,
                    "-" if "seconds" not in last else "never" if seconds is None else seconds,
                ]
            )
    return rows
