"""The end of an error about an unknown name: the known names that are close to it, and all known names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["close_names", "did_you_mean", "known_names"]

#: Characters of a name that are compared: others may have sent it, and the time grows with its length.
_COMPARED = 80


#: Names that other libraries have for ours.
_OTHER_NAMES = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "fp32": "float32", "learning_rate": "lr"}


def close_names(name: object, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return at most ``most`` of ``known`` that ``name`` may be a misspelling of, the closest first. Case does not count."""
    ours = _OTHER_NAMES.get(str(name)[:_COMPARED].lower())
    known = list(known)
    if ours in known:
        return [ours]
    spelled = {one.lower(): one for one in known}
    return [spelled[found] for found in get_close_matches(str(name)[:_COMPARED].lower(), spelled, n=most, cutoff=cutoff)]


def did_you_mean(name: object, known: Iterable[str], *, most: int = 1) -> str:
    """Return the question for the close names, and a space; empty if no name is close."""
    close = close_names(name, known, most=most)
    return f"did you mean {' or '.join(map(repr, close))}? " if close else ""


def known_names(name: object, known: Iterable[str], *, most: int = 1) -> str:
    """Return the question for the close names, and the list of ``known``."""
    names = list(known)
    return f"{did_you_mean(name, names, most=most)}known are {', '.join(names) or 'none'}"
