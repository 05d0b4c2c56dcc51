"""A run that continues an earlier one: from its newest checkpoint, with the job and graphs that the broker stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from farflung.broker.records.bundle_file import read_bundle
from farflung.broker.records.run_folders import RunFolders
from farflung.broker.run_table import RunTable
from farflung.checkpoint import Manifest, locate
from farflung.errors import CheckpointError, InputError
from farflung.job import check_job
from farflung.job import from_json as job_from_json
from farflung.messages.calls import ResumableAnswer
from farflung.messages.submission import Bundle
from farflung.security import Caller
from farflung.telemetry.folder import RunFolder

__all__ = ["Continuations"]

#: How many runs an error lists.
_LISTED = 8


@dataclass(frozen=True, slots=True)
class Continuations:
    """Finds earlier runs and makes the bundles that continue them. Any thread may call."""

    runs: RunTable
    folders: RunFolders

    def find(self, source: str, caller: Caller) -> Path:
        """The folder that ``source`` names: a run, or a folder on this machine.

        Raises:
            InputError: there is none; the text lists the caller's last runs.
            SecurityError: it is somebody else's.
        """
        folder = self.folders.source(source, caller)
        if not folder.is_dir():
            known = ", ".join(found.label for found in self._known(caller)[-_LISTED:]) or "none"
            raise InputError(f"there is no run {source!r} to resume; known runs: {known}")
        return folder

    def describe(self, source: str, caller: Caller) -> ResumableAnswer:
        """``step`` of the newest checkpoint, ``steps`` of the job and the name of its learning-rate ``schedule``.

        Raises:
            CheckpointError: there is no checkpoint.
            InputError, SecurityError: as ``find``.
        """
        newest = _newest(self.find(source, caller), source)
        job = job_from_json(newest.job)
        return ResumableAnswer(step=newest.step, steps=job.steps, schedule=job.schedule.name)

    def bundle(self, source: str, caller: Caller, run: str, steps: int | None) -> Bundle:
        """The bundle of the new run ``run``, which continues the run ``source`` up to ``steps`` (None: as many as before).

        Raises:
            CheckpointError: there is no checkpoint.
            InputError: the run is not over, has no step left, or takes its data from a Python program.
            SecurityError: it is somebody else's.
        """
        folder = self.find(source, caller)
        newest = _newest(folder, source)
        job = job_from_json(newest.job)
        self._check_over(source)
        if job.data.kind == "caller":
            raise InputError(
                f"run {source!r} takes its data from the Python program that submitted it: resume it from that program"
            )
        wanted = steps or job.steps
        if steps is not None and steps <= newest.step:
            raise InputError(
                f"--steps must be above {newest.step}, got {steps}: run {source!r} has a checkpoint after step {newest.step}"
            )
        if wanted <= newest.step:
            raise InputError(
                f"run {source!r} has a checkpoint after step {newest.step} of {wanted}: add --steps N with N above {newest.step}"
            )
        checkpoint = job.checkpoint.model_copy(update={"resume": source})
        continued = job.model_copy(update={"steps": wanted, "checkpoint": checkpoint})
        check_job(continued)
        return replace(read_bundle(folder), run=run, job=continued)

    def _check_over(self, run: str) -> None:
        with self.runs.changed:
            known = self.runs.machine.runs.get(run)
            if known is not None and not known.state.over:
                raise InputError(
                    f"run {run!r} is not over ({known.state.value}): farflung watch {run} shows it, farflung stop {run} ends it"
                )

    def _known(self, caller: Caller) -> list[RunFolder]:
        """The caller's runs, the oldest first."""
        root = self.folders.root
        found = [place for place in root.iterdir() if (place / "job.json").is_file()] if root.is_dir() else []
        return [RunFolder(place) for place in sorted(found, key=_age) if self.folders.owns(place.name, caller)]


def _age(folder: Path) -> float:
    return (folder / "job.json").stat().st_mtime


def _newest(folder: Path, source: str) -> Manifest:
    store, named = locate(folder)
    steps = store.steps() if named is None else (named,)
    if not steps:
        raise CheckpointError(f"run {source!r} has no checkpoint to resume from: submit its job again")
    return store.manifest(steps[-1])
