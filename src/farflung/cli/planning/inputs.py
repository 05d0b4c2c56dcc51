"""What the planning commands read: a topology, a plan file, a time span; and the check of a job's files."""

from __future__ import annotations

from pathlib import Path

import typer

from farflung.api.plan_file import PlanFile, read_plan_file
from farflung.checkpoint import Weights
from farflung.cli.options import quantity, read_text
from farflung.cluster import Topology
from farflung.data import absent_data
from farflung.errors import InputError
from farflung.job.spec import JobSpec
from farflung.units import Seconds

__all__ = ["check_files", "read_plan", "read_time", "read_topology"]


def check_files(spec: JobSpec, job: Path) -> None:
    """Check the files that ``spec`` names, before the slow capture. Data that only workers may have is a line on stderr.

    Raises:
        CheckpointError: this machine sends the first weights, and it has no such file.
        InputError: a path of the data is malformed.
    """
    if spec.weights.source == "file" and spec.weights.home == "submitter":
        Weights.open(spec.weights.path)
    if line := absent_data(spec.data, (job.resolve().parent, Path.cwd())):
        typer.echo(f"note: {line}", err=True)


def read_topology(text: str) -> Topology:
    """Return the topology of a file, or the preset of this name.

    Raises:
        InputError: it is neither.
    """
    if text.endswith((".toml", ".json")) or "/" in text:
        return Topology.from_toml(text)
    return Topology.preset(text)


def read_time(text: str | None, option: str, example: str = "6 h") -> float | None:
    """Return a time span in seconds, above 0 (``None``: the option is absent).

    Raises:
        InputError: it is none.
    """
    if text is None:
        return None
    seconds = quantity(Seconds, text, option)
    if seconds <= 0:
        raise InputError(f'{option} must be more than 0, got {text!r}; write e.g. "{example}"')
    return float(seconds)


def read_plan(path: Path) -> PlanFile:
    """Return the plan in a file, with the job and the topology that it was made for, where the file holds them.

    Raises:
        InputError: the file can't be read, or it is not a plan file.
    """
    return read_plan_file(read_text(path, "plan"), str(path))
