"""Engines with ranges of versions, as requirements of Python packages: ``torch``, ``torch>=2.13,<2.14``, ``jax==0.10.*``."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["engine_name", "engine_range", "in_ranges"]


def engine_range(text: str) -> str:
    """Return ``text`` if it is an engine, perhaps with a range of versions.

    Raises:
        ValueError: it is not.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        found = Requirement(text)
    except InvalidRequirement:
        found = None
    if found is None or found.extras or found.marker or found.url:
        raise ValueError(f'{text!r:.60} is no engine with a range of versions, such as "torch>=2.13,<2.14"')
    return text


def engine_name(text: str) -> str:
    """Return the name of the engine in ``text``, which ``engine_range`` accepts."""
    from packaging.requirements import Requirement

    return Requirement(text).name


def in_ranges(engine: str, ranges: Sequence[str]) -> bool:
    """Whether ``engine``, a name and a version such as ``torch 2.13.0+cpu``, is in one of ``ranges``.

    Without ranges every engine is, and with them every engine that is not known (empty).
    """
    if not ranges or not engine:
        return True
    from packaging.requirements import Requirement
    from packaging.version import InvalidVersion, Version

    name, _, version = engine.partition(" ")
    found = [item for item in map(Requirement, ranges) if item.name == name]
    if not all(item.specifier for item in found):
        return True
    try:
        known = Version(version)
    except InvalidVersion:
        return False
    return any(item.specifier.contains(known, prereleases=True) for item in found)
