"""Reads job files: TOML in, a checked ``JobSpec`` out, and one clear line for whatever is wrong.

The document is checked in strict mode (no silent conversion of ``"10"`` or ``true`` to a number). JSON is how a job travels.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from farflung.errors import InputError
from farflung.ids import content_hash
from farflung.job.check import check_job
from farflung.job.explain import explain
from farflung.job.spec import ImageSpec, JobSpec

__all__ = ["from_json", "load_job", "make_job", "to_json", "training_hash"]

#: Job files are small; anything larger is refused before it is parsed. A job that travels may hold rules and values.
_MAX_BYTES, _MOST_TRAVELING = 1 << 20, 32 << 20

#: What decides the numbers of a step beside the graph and the states: the model has its own hash, first weights are past.
_TRAINING = frozenset(
    (
        *("seed", "micro_batch_sizes", "weighting", "virtual_replicas", "precision", "threads"),
        *("data", "optimizer", "schedule", "sync"),
    )
)

#: Keys that came later than the first checkpoints, with the values that change nothing.
_LATER = (("optimizer", "update", "plain"), ("data", "image", ImageSpec().model_dump(mode="json")))


def load_job(path: str | Path) -> JobSpec:
    """Read and check the job file ``path`` (TOML).

    ``model.recipe`` (if it names a Python file), ``model.args.folder``, ``weights.path`` (unless it lies on the workers) and
    ``checkpoint.resume`` (if it has a slash) are read on the submitting machine: relative ones are made absolute against the
    job file's folder. ``data`` paths stay as they are written: each machine reads them against its own data folder.

    Raises:
        InputError: the file can't be read, or a key is unknown, missing or has a value that is not allowed.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        if size > _MAX_BYTES:
            raise InputError(f"job file {file} has {size} bytes, at most {_MAX_BYTES} are read: is it a job file?")
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"job file {file} does not exist: check the path (examples/ has job files to copy)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"job file {file} can't be read: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}; check the path"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file}: not valid TOML: {error}") from None
    job = make_job(document, source=str(file))
    if job.model is None:
        raise InputError(f'{file}: model is missing: add a [model] table with recipe = "..."')
    if job.data.kind == "caller":
        raise InputError(
            f"{file}: data.kind = 'caller' needs a Python caller: use 'text', 'array', 'images' or 'dataset' in a job file"
        )
    return _absolute(job, file.resolve().parent)


def make_job(document: Mapping[str, Any], source: str = "job") -> JobSpec:
    """A checked job from nested mappings (keys as in a job file); ``source`` begins each error text.

    Raises:
        InputError: a key is unknown, missing or has a value that is not allowed.
    """
    try:
        text = json.dumps(document)
    except (TypeError, ValueError) as error:
        raise InputError(f"{source}: only numbers, texts, booleans, lists and tables are allowed: {error}") from None
    return _parse(text, source)


def to_json(job: JobSpec) -> str:
    """The job as canonical JSON: all keys, sorted, no spaces; equal jobs give equal texts."""
    return json.dumps(job.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_json(text: str) -> JobSpec:
    """Read what ``to_json`` wrote.

    Raises:
        InputError: the text is not a job.
    """
    if len(text) > _MOST_TRAVELING:
        raise InputError(f"a job document has {len(text)} characters, at most {_MOST_TRAVELING} are read")
    return _parse(text, "job")


def training_hash(job: JobSpec) -> str:
    """SHA-256 of what decides the numbers of each step, given the graph and the states.

    Equal for jobs that differ only in name, steps, workers, plan, codec, checkpoints, evaluation, generation or ``on_nan``;
    a checkpoint may be resumed by any job with the same graph and training hash. (More steps stretch a cosine or linear
    schedule.) The graph has a hash of its own, so that neither a moved recipe file nor moved weights matter.
    """
    kept = job.model_dump(mode="json", include=set(_TRAINING))
    # A run may continue for more steps: then there are more values, and perhaps more programs of the optimizer.
    kept["schedule"].pop("values")
    for section, key, default in _LATER:  # a run of an earlier version may continue
        if kept[section][key] == default:
            kept[section].pop(key)
    if kept["optimizer"]["rules"]:
        kept["optimizer"]["rules"] = _first_programs(kept["optimizer"]["rules"])
    return content_hash(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode())


def _first_programs(rules: str) -> Any:
    """The rules of an optimizer with the programs that every run has: a rule's last ones."""
    try:
        document = json.loads(rules)
        for rule in document["rules"]:
            rule |= {key: rule[key][-1:] for key in ("first", "later")}
    except (ValueError, TypeError, KeyError):
        return rules  # damaged, which whoever runs them finds
    return document


def _parse(text: str, source: str) -> JobSpec:
    try:
        job = JobSpec.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise InputError(f"{source}: {explain(error, JobSpec)}") from None
    try:
        check_job(job)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return job


def _absolute(job: JobSpec, folder: Path) -> JobSpec:
    changes: dict[str, Any] = {}
    if job.model is not None:
        model: dict[str, Any] = {}
        if ".py:" in job.model.recipe:
            model["recipe"] = _below(folder, job.model.recipe)
        if isinstance(where := job.model.args.get("folder"), str):
            model["args"] = {**job.model.args, "folder": _below(folder, where)}
        changes["model"] = job.model.model_copy(update=model)
    if job.weights.path and job.weights.home == "submitter" and "://" not in job.weights.path:
        changes["weights"] = job.weights.model_copy(update={"path": _below(folder, job.weights.path)})
    if "/" in job.checkpoint.resume:
        changes["checkpoint"] = job.checkpoint.model_copy(update={"resume": _below(folder, job.checkpoint.resume)})
    return job.model_copy(update=changes)


def _below(folder: Path, path: str) -> str:
    return str(folder / Path(path).expanduser())
