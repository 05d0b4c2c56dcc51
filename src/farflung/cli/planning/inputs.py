"""What the planning commands read: a topology, a plan document, a time span."""

from __future__ import annotations

import json

from farflung.cli.options import quantity
from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.units import Seconds

__all__ = ["plan_text", "read_time", "read_topology"]


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


def plan_text(text: str) -> str:
    """Return the plan document in ``text``, which may be one under the key ``plan`` (``farflung plan --json``)."""
    try:
        body = json.loads(text)
    except ValueError:
        return text
    inner = body.get("plan") if isinstance(body, dict) else None
    return json.dumps(inner) if isinstance(inner, dict) else text
