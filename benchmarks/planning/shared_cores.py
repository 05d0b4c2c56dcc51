"""``shared-cores``: predicted over measured step time of workers that share the cores of one machine, for five models.

Broker and workers are processes of this machine, started with the commands that users type, and pinned to ``cores`` cores.
Prediction and step times are those that the run itself records. The figure of a model is the prediction over the median step
after the warm-up, in the median of ``repeats`` runs. CPU time that other programs use on the machine while steps are measured is
reported with the figures, and targets are not judged where it is more than ``most_other`` cores.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from benchmarks.harness.clusters import bundle_of
from benchmarks.harness.priority import favoured
from benchmarks.planning.transfer_cost import measure_transfers
from farflung.chaos.local_cluster import Finished, LocalCluster, finished
from farflung.client.connection import Client
from farflung.errors import InputError
from farflung.job import make_job
from farflung.messages.watching import RecordLine
from farflung.telemetry import StepRecord, read_record

__all__ = ["MODELS", "SharedCores", "SharedCoresSettings", "other_load"]

_LEAST, _MOST = 0.8, 1.25
_CLASSES, _FEATURES, _PIXELS = 10, 512, 32
_TEXT = {"kind": "text", "path": "corpus", "tokenizer": "bytes", "sequence": 64}
_MLP = """
from torch import nn
from torch.nn import functional

class Mlp(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        sizes = [512] + [width] * layers
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.head = nn.Linear(width, 10)

    def forward(self, inputs, labels):
        for layer in self.layers:
            inputs = functional.relu(layer(inputs))
        return functional.cross_entropy(self.head(inputs), labels)

def mlp(width=64, layers=4):
    return Mlp(width, layers)

def example_inputs(batch_size):
    import torch
    return torch.randn(batch_size, 512), torch.randint(0, 10, (batch_size,))
"""

#: name -> (model, data, arguments for quick runs, arguments otherwise, multiplier of the rows of a micro-batch: who trains an MLP
#: uses larger ones)
MODELS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any], int]] = {
    "gpt": (
        "gpt",
        _TEXT,
        {"vocab": 256, "sequence": 64, "layers": 2, "width": 32, "heads": 2},
        {"vocab": 256, "sequence": 64, "layers": 6, "width": 192, "heads": 4},
        1,
    ),
    "resnet18": ("resnet18", {"kind": "array", "path": "images"}, {"size": _PIXELS}, {"size": _PIXELS}, 1),
    "mlp": (
        "mlp.py:mlp",
        {"kind": "array", "path": "vectors"},
        {"width": 64, "layers": 4},
        {"width": 512, "layers": 8},
        32,
    ),
    "bert": (
        "bert",
        _TEXT,
        {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
        | {"vocab_size": 256, "sequence": 64},
        {"num_hidden_layers": 6, "hidden_size": 192, "intermediate_size": 768, "num_attention_heads": 4}
        | {"vocab_size": 256, "sequence": 64},
        1,
    ),
    "llama": (
        "llama",
        _TEXT,
        {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
        | {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": 256, "sequence": 64},
        {"num_hidden_layers": 6, "hidden_size": 192, "intermediate_size": 512, "num_attention_heads": 4}
        | {"num_key_value_heads": 2, "head_dim": 48, "vocab_size": 256, "sequence": 64},
        1,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCoresSettings(Settings):
    """``models`` on ``workers`` processes that share ``cores`` cores, each model ``repeats`` times. ``rows``: samples of each of
    ``micro_batches``. ``most_other``: cores that other programs may use for targets to be judged.
    """

    models: tuple[str, ...] = tuple(MODELS)
    workers: int = 3
    cores: int = 2
    repeats: int = 3
    micro_batches: int = 6
    rows: int = 4
    steps: int = 30
    warm_up: int = bounded(10)
    planner: str = "equal_compute"
    most_other: float = bounded(0.2)


class SharedCores:
    """Errors of predicted step times where workers share cores."""

    name = "shared-cores"
    summary = "predicted over measured step time, three workers on two cores, five models"

    def settings(self, quick: bool) -> SharedCoresSettings:
        """Quick: two workers, one small model, a few steps."""
        if not quick:
            return SharedCoresSettings()
        return SharedCoresSettings(quick=True, models=("mlp",), workers=2, repeats=1, micro_batches=2, steps=3, warm_up=1)

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure.

        Raises:
            InputError: a model is unknown, or this machine has fewer cores.
            FarflungError: a process ends early, or a run fails.
        """
        assert isinstance(settings, SharedCoresSettings)
        unknown = [name for name in settings.models if name not in MODELS]
        if unknown:
            raise InputError(f"unknown model {unknown[0]!r}: known are {', '.join(MODELS)}")
        names = [f"worker-{number}" for number in range(settings.workers)]
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in settings.models}
        with tempfile.TemporaryDirectory(prefix="farflung-shared-cores-") as place, pinned(settings.cores), favoured():
            folder = Path(place)
            _write_data(folder, settings.seed)
            with LocalCluster(folder / "cluster", names, data=folder) as cluster:
                for turn in range(settings.repeats):
                    for model in settings.models:
                        found[model].append(_measure(settings, cluster, model, folder))
                        last = found[model][-1]
                        say(
                            f"{model} {turn + 1}: predicted {last['predicted']:.3f} s, measured {last['measured']:.3f} s, "
                            f"ratio {last['ratio']:.2f}, other programs used {last['other_cores']:.2f} cores"
                        )
            transfer = measure_transfers()
            per_frame, per_byte = transfer["frame_seconds"] * 1e3, transfer["byte_seconds"] * 1e9
            say(f"CPU time of a transfer: {per_frame:.2f} ms per frame and {per_byte:.2f} ns per byte")
        return _report(settings, found, transfer)


@contextmanager
def pinned(cores: int) -> Iterator[None]:
    """This process, and what it starts, run on the first ``cores`` cores that it may use.

    Raises:
        InputError: it may use fewer, or the system can't pin processes.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise InputError("this system can't pin processes to cores; run the benchmark on Linux")
    before = os.sched_getaffinity(0)
    if len(before) < cores:
        raise InputError(f"cores={cores}: this process may use {len(before)}; set cores={len(before)}")
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def other_load(before: tuple[float, float], after: tuple[float, float], seconds: float) -> tuple[float, float]:
    """Cores that other programs used, and that we did: ``before`` and ``after`` are CPU seconds of (all programs, our own)."""
    own = after[1] - before[1]
    return max(0.0, (after[0] - before[0]) - own) / seconds, own / seconds


class CpuTime:
    """CPU seconds of all programs of this machine on the cores that we use, and of this process and those that it started.

    A process that has ended counts with what was last seen of it: nobody can be asked for it afterwards.
    """

    def __init__(self) -> None:
        self._own: dict[tuple[int, float], float] = {}  # of each process, by its number and start

    def read(self) -> tuple[float, float]:
        """(all programs, our own), in seconds since the machine's start; ours never decreases."""
        per_core = psutil.cpu_times(percpu=True)
        used = [per_core[core] for core in os.sched_getaffinity(0) if core < len(per_core)]
        this = psutil.Process()
        for process in (this, *this.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # it has ended since
                times = process.cpu_times()
                self._own[process.pid, process.create_time()] = times.user + times.system
        return sum(core.user + core.system + core.nice for core in used), sum(self._own.values())


def _write_data(folder: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    (folder / "corpus").mkdir()
    lines = "".join(f"def f{number}(x):\n    return x + {number * number}\n" for number in range(4000))
    (folder / "corpus" / "text.txt").write_text(lines, encoding="utf-8")
    for name, shape in (("images", (3, _PIXELS, _PIXELS)), ("vectors", (_FEATURES,))):
        (folder / name).mkdir()
        np.save(folder / name / "inputs.npy", random.standard_normal((512, *shape)).astype(np.float32))
        np.save(folder / name / "labels.npy", random.integers(0, _CLASSES, 512))
    (folder / "mlp.py").write_text(_MLP, encoding="utf-8")


def _measure(settings: SharedCoresSettings, cluster: LocalCluster, model: str, folder: Path) -> dict[str, Any]:
    recipe, data, small, large, more = MODELS[model]
    document = {
        "name": model,
        "seed": settings.seed,
        "steps": settings.warm_up + settings.steps,
        "micro_batch_sizes": [settings.rows * more] * settings.micro_batches,
        "threads": settings.threads,
        "workers": settings.workers,
        "model": {"recipe": recipe, "args": dict(small if settings.quick else large)},
        "data": dict(data),
        "optimizer": {"name": "adamw", "lr": 1e-3},
        "plan": {"planner": settings.planner, "again": False},
        "checkpoint": {"at_end": False},
    }
    bundle = bundle_of(make_job(document), base=folder)
    client = cluster.client()
    try:
        answer = client.submit(bundle)
        cores = _watch(client, bundle.run, settings.warm_up)
    finally:
        client.close()
    return _figures(settings, finished(Path(str(answer["folder"]))), cores)


def _watch(client: Client, run: str, warm_up: int) -> tuple[float, float]:
    """Wait for the end of the run; the cores that others and we used while steps after the warm-up were made."""
    first = last = time.monotonic()
    time_of_programs = CpuTime()
    before = after = time_of_programs.read()
    for message in client.watch(run):
        if not isinstance(message, RecordLine):
            continue
        record = read_record(message.line)
        if isinstance(record, StepRecord):
            last, after = time.monotonic(), time_of_programs.read()
            if record.step < warm_up:
                first, before = last, after
    return other_load(before, after, max(last - first, 1e-9))


def _figures(settings: SharedCoresSettings, run: Finished, cores: tuple[float, float]) -> dict[str, Any]:
    times = [step.seconds for step in run.steps[settings.warm_up :]]
    predicted, measured = float(run.steps[-1].predicted_seconds or 0.0), median(times)
    return {
        "predicted": predicted,
        "measured": measured,
        "ratio": predicted / measured,
        "seconds": times,
        "busy_seconds": {str(stage): seconds for stage, seconds in run.steps[-1].busy_seconds.items()},
        "bytes_per_step": run.steps[-1].total_bytes,
        "bounds": [list(bound) for bound in run.plan.bounds],
        "hosts": [[capacity, len(devices)] for capacity, devices in run.topology.hosts],
        "other_cores": cores[0],
        "own_cores": cores[1],
    }


def _report(
    settings: SharedCoresSettings, found: Mapping[str, Sequence[Mapping[str, Any]]], transfer: Mapping[str, float]
) -> Report:
    rows, checks, table = [], [], {}
    for model, runs in found.items():
        ratios, other = [run["ratio"] for run in runs], max(run["other_cores"] for run in runs)
        ratio = median(ratios)
        table[model] = {"ratio": ratio, "other_cores": other, "runs": list(runs)}
        middle = [median(run[key] for run in runs) for key in ("predicted", "measured")]
        rows.append((model, *middle, ratio, min(ratios), max(ratios), other))
        disturbed = other > settings.most_other
        judged = not settings.quick and not disturbed
        note = f"other programs used {other:.2f} cores; measure again on a quiet machine" if disturbed else ""
        check = Check(
            name=f"predicted over measured step time, {model}",
            target=f"{_LEAST:g} to {_MOST:g}",
            measured=f"{ratio:.2f}",
            passed=_LEAST <= ratio <= _MOST if judged else None,
            note=note,
        )
        checks.append(check)
    columns = ("model", "predicted s", "measured s", "ratio", "least", "most", "other cores")
    return Report(figures={"models": table, "transfer": dict(transfer)}, columns=columns, rows=rows, checks=tuple(checks))
