"""Whether this process has the codecs, strategy and planner that a job names: plug-ins are installed machine by machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from farflung.codecs import CODECS, MEMORIES
from farflung.errors import InputError
from farflung.job.spec import JobSpec
from farflung.plan.codec_choice.compression import PLANNED
from farflung.planners.catalog import PLANNERS
from farflung.registry import Registry
from farflung.sync import codec_name
from farflung.sync.members import STRATEGIES

__all__ = ["check_plugins"]


def check_plugins(job: JobSpec, who: str, *, plans: bool) -> None:
    """Whether the process called ``who`` has what ``job`` names; ``plans``: the planner, too, which only a broker needs.

    Raises:
        InputError: it lacks a name, or the package that brings it is broken there; the text says where, and what to install.
    """
    for registry, name in _named(job, plans):
        try:
            registry.get(name)
        except InputError as error:
            raise InputError(
                f"{who} can't take part: {error}; a plug-in must be installed on the broker and on each worker: install the "
                f"package that brings {name!r} there, start that process again, and submit again"
            ) from None


def _named(job: JobSpec, plans: bool) -> Iterator[tuple[Registry[Any], str]]:
    settings = job.sync.settings
    codecs = [job.codec.family, codec_name(str(settings.get("codec", "identity")))]
    yield from ((CODECS, name) for name in codecs if name not in PLANNED)
    yield MEMORIES, codec_name(str(settings.get("memory", "none")))
    if job.sync.strategy != "exact":
        yield STRATEGIES, job.sync.strategy
    if plans:
        yield PLANNERS, job.plan.planner
