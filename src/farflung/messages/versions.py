"""The versions in the handshake: which differences keep a member out, and which only cost bit-equality.

| difference                       | consequence                                                                 |
| -------------------------------- | --------------------------------------------------------------------------- |
| protocol, farflung major.minor   | the broker refuses the member; the error names the version to install       |
| farflung patch                   | the member joins, with a warning in ``farflung status``                     |
| engine or its version            | the member joins, with a warning in ``status`` and in each run that mixes   |
| Python, platform                 | none: they change no result; ``farflung status --json`` shows them          |
"""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from farflung.errors import VersionError
from farflung.version import __version__

if TYPE_CHECKING:
    from farflung.protocol.members import Member
    from farflung.wire.frames import Frame

__all__ = ["PROTOCOL_VERSION", "check_session", "check_versions", "mixed_engines", "own_versions", "version_warnings"]

#: The version of the messages between members and broker. Raise it when a message changes its meaning.
PROTOCOL_VERSION = 9


def own_versions(engine: str) -> dict[str, str]:
    """Return the versions of this process; ``engine`` is the engine's name and version, e.g. ``torch 2.13.0``."""
    system = f"{platform.system()} {platform.machine()}"
    return {"farflung": __version__, "engine": engine, "python": platform.python_version(), "platform": system}


def check_versions(request: Frame, protocol: int) -> None:
    """Check that a member that asks to join speaks this broker's ``protocol`` and has the same major and minor version.

    Raises:
        VersionError: it does not; the text says what to install where.
    """
    version, other = str(request.header.get("version"))[:40], request.header.get("protocol")
    if other == protocol and _minor(version) == _minor(__version__):
        return
    older_broker = isinstance(other, int) and (other, _minor(version)) > (protocol, _minor(__version__))
    raise _refusal(f" (protocol {protocol})", f"{version} (protocol {other!s:.40})", version if older_broker else "")


def check_session(version: str) -> None:
    """Check the ``version`` of a worker whose certificate is older than this broker's farflung: it did not join again.

    Raises:
        VersionError: major or minor version differ; the text says what to install where.
    """
    if version and _minor(version) != _minor(__version__):
        raise _refusal("", version, version if _minor(version) > _minor(__version__) else "")


def _refusal(protocol: str, other: str, newer: str) -> VersionError:
    """``newer``: the version that the broker needs (empty: the other side needs the broker's)."""
    where = (
        f"the broker's machine: pip install farflung=={newer}"
        if newer
        else f"the other machine: pip install farflung=={__version__}"
    )
    return VersionError(
        f"this broker is farflung {__version__}{protocol}, the other side is farflung {other}: "
        f"major and minor version must be equal; run on {where}"
    )


def version_warnings(members: Sequence[Member]) -> dict[str, list[str]]:
    """Return the warnings for ``status`` by member: its engine is not that of most members, its farflung not the broker's."""
    engines = [_public(member.offer.versions.get("engine", "")) for member in members]
    usual = next((engine for engine, _ in Counter(filter(None, engines)).most_common(1)), "")
    found: dict[str, list[str]] = {}
    for member, engine in zip(members, engines, strict=True):
        version = member.offer.versions.get("farflung", "")
        if engine and engine != usual:
            found.setdefault(member.name, []).append(
                f"{engine}, most workers have {usual}: runs that use both are not bit-equal to a plain loop; "
                f"{_remedy(engine, usual)}"
            )
        if version and version != __version__:
            found.setdefault(member.name, []).append(
                f"farflung {version}, the broker has {__version__}; install farflung=={__version__} there"
            )
    return found


def _remedy(engine: str, usual: str) -> str:
    """How a worker gets the engine that most others have: another version of the same, or another one."""
    name, _, version = usual.partition(" ")
    return f"install {name}=={version} there" if engine.partition(" ")[0] == name else f"join with --engine {name} there"


def mixed_engines(members: Sequence[Member]) -> str:
    """Return a warning for a run on ``members`` whose engine versions differ ("": they are equal)."""
    by_engine: dict[str, list[str]] = {}
    for member in members:
        if engine := _public(member.offer.versions.get("engine", "")):
            by_engine.setdefault(engine, []).append(member.name)
    if len(by_engine) < 2:
        return ""
    told = "; ".join(f"{engine} on {', '.join(names)}" for engine, names in by_engine.items())
    return (
        f"warning: engine versions differ ({told}): the result is not bit-equal to that of a plain loop; install one version, "
        "or choose one with limits.engines"
    )


def _minor(version: str) -> tuple[int, ...]:
    """Major and minor number (empty: ``version`` has none)."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return () if match is None else (int(match[1]), int(match[2]))


def _public(engine: str) -> str:
    """Without the build, e.g. ``+cu128``: the same release for other devices computes the same."""
    return engine.partition("+")[0]
