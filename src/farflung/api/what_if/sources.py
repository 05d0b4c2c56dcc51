"""Where job and topology of a scenario come from: a preset with a well-known model, the text of a file, or a run.

The data of presets are placeholders: nothing reads them here.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farflung.api.plan_file import PlanFile, read_plan_file
from farflung.api.what_if.scenario import MOST_MACHINES
from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.graph.ir import Graph
from farflung.job.load import from_json, make_job
from farflung.job.spec import JobSpec
from farflung.known_names import known_names
from farflung.telemetry import RunFolder

__all__ = ["MODEL_PRESETS", "ModelPreset", "job_of_text", "preset_job", "run_documents", "topology_of_text"]

#: Characters of a topology: 256 machines with a link between each two of them fit.
_LONGEST = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPreset:
    """A model with a usual batch. ``steps``: of the run whose cost is predicted."""

    title: str
    recipe: str
    args: dict[str, Any]
    micro_batch_sizes: tuple[int, ...]
    steps: int
    images: int = 0

    def job(self, name: str) -> JobSpec:
        """Return the job."""
        data: dict[str, Any] = {"kind": "text", "path": "text", "sequence": self.args.get("sequence", 1)}
        if self.images:
            data = {"kind": "images", "path": "images", "size": self.images}
        body = {
            "name": name,
            "steps": self.steps,
            "micro_batch_sizes": list(self.micro_batch_sizes),
            "model": {"recipe": self.recipe, "args": self.args},
            "data": data,
            "optimizer": {"name": "adamw"},
            "precision": "float32" if self.images else "bf16",
        }
        return make_job(body, source=f"preset {name}")


def _gpt(layers: int, width: int, heads: int) -> dict[str, Any]:
    return {"vocab": 50257, "sequence": 1024, "layers": layers, "width": width, "heads": heads}


#: Name -> preset, the smallest first.
MODEL_PRESETS: dict[str, ModelPreset] = {
    "gpt-small": ModelPreset(
        title="GPT, 1.2 M parameters, bytes",
        recipe="gpt",
        args={"vocab": 256, "sequence": 128, "layers": 6, "width": 128, "heads": 4},
        micro_batch_sizes=(8,) * 4,
        steps=300,
    ),
    "resnet-50": ModelPreset(
        title="ResNet-50, 224 x 224 pixels",
        recipe="resnet50",
        args={"size": 224, "classes": 1000, "stem": "imagenet"},
        micro_batch_sizes=(32,) * 8,
        steps=5_000,
        images=224,
    ),
    "gpt2": ModelPreset(
        title="GPT-2, 124 M parameters", recipe="gpt", args=_gpt(12, 768, 12), micro_batch_sizes=(4,) * 16, steps=20_000
    ),
    "gpt2-large": ModelPreset(
        title="GPT-2 large, 774 M parameters", recipe="gpt", args=_gpt(36, 1280, 20), micro_batch_sizes=(4,) * 16, steps=20_000
    ),
    "gpt2-xl": ModelPreset(
        title="GPT-2 XL, 1.6 G parameters", recipe="gpt", args=_gpt(48, 1600, 25), micro_batch_sizes=(4,) * 16, steps=20_000
    ),
    "gpt3-6.7b": ModelPreset(
        title="GPT-3, 6.7 G parameters",
        recipe="gpt",
        args={"vocab": 50257, "sequence": 2048, "layers": 32, "width": 4096, "heads": 32},
        micro_batch_sizes=(2,) * 32,
        steps=50_000,
    ),
}


def preset_job(name: str) -> JobSpec:
    """Return the job of the preset ``name``.

    Raises:
        InputError: there is none; the text lists the known ones.
    """
    preset = MODEL_PRESETS.get(name)
    if preset is None:
        raise InputError(f"no model preset is called {name!r}: {known_names(name, MODEL_PRESETS)}")
    return preset.job(name)


def job_of_text(text: str) -> JobSpec:
    """Return the job in the text of a job file, for somebody who may not run code on this machine.

    Raises:
        InputError: the text is no job, or too long, or its model is a file or folder of this machine.
    """
    job = make_job(_parsed(text, "job"))
    if job.model is None:
        raise InputError('model is missing: add a [model] table with recipe = "..."')
    if ".py" in job.model.recipe or "folder" in job.model.args:
        raise InputError(
            f"model.recipe = {job.model.recipe!r} reads files of the broker's machine, which this page does not do: name a "
            "built-in recipe, choose a run that has this model, or use farflung plan"
        )
    return job


def topology_of_text(text: str) -> Topology:
    """Return the topology in the text of a topology file.

    Raises:
        InputError: the text is no topology, or it has too many machines: links take memory with the square of their number.
    """
    devices = _parsed(text, "topology").get("device")
    tables = [one for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    count = sum(max(number, 1) for one in tables if isinstance(number := one.get("count", 1), int))
    if count > MOST_MACHINES:
        raise InputError(f"the topology has {count} machines, this page takes {MOST_MACHINES}: use farflung plan")
    return Topology.from_text(text, "the topology")


def _parsed(text: str, what: str) -> dict[str, Any]:
    if len(text) > _LONGEST:
        raise InputError(f"the {what} has {len(text)} characters, this page takes {_LONGEST}: use farflung plan")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not valid TOML: {error}") from None
    except RecursionError:
        raise InputError(f"the {what} has too many brackets inside each other: no {what} file needs them") from None


def run_documents(folder: RunFolder) -> PlanFile:
    """Return job, graph, topology and newest plan of a run.

    Raises:
        InputError: the folder lacks one of these documents, because the run still waits for workers; or one is damaged.
    """
    for path in (folder.job, folder.graph, folder.topology, folder.plan):
        if not path.is_file():
            raise InputError(
                f"the run in {folder.root} has no plan yet ({path.name} is missing): wait until the run starts (farflung status)"
            )
    return PlanFile(
        plan=read_plan_file(_text(folder.plan), str(folder.plan)).plan,
        job=from_json(_text(folder.job)),
        topology=Topology.from_json(_text(folder.topology)),
        graph=Graph.from_json(_text(folder.graph)),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
