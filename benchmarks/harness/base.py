"""What a benchmark is, and the report that it gives: settings in, figures and a verdict against the target out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol, TypeVar

from farflung.errors import InputError

__all__ = ["Benchmark", "Check", "Report", "Say", "Settings", "bounded", "override"]

#: Told what goes on, for a person who waits.
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One figure against its target. ``passed`` None: the target is not judged at these settings (``note`` says why)."""

    name: str
    target: str
    measured: str
    passed: bool | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a benchmark found. ``figures``: plain values for JSON. ``columns`` and ``rows``: the table that people read."""

    figures: Mapping[str, Any]
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    checks: Sequence[Check] = ()

    @property
    def passed(self) -> bool | None:
        """Whether all judged targets were reached (None: none was judged)."""
        judged = [check.passed for check in self.checks if check.passed is not None]
        return all(judged) if judged else None

    def document(self, name: str, settings: Settings, environment: Mapping[str, Any]) -> dict[str, Any]:
        """Everything as one object for JSON."""
        return {
            "benchmark": name,
            "settings": asdict(settings),
            "environment": dict(environment),
            "figures": dict(self.figures),
            "checks": [asdict(check) for check in self.checks],
            "passed": self.passed,
        }

    def table(self) -> str:
        """Rows and checks as text."""
        lines = _aligned([self.columns, *self.rows])
        for check in self.checks:
            mark = {True: "reached", False: "MISSED", None: "not judged"}[check.passed]
            note = f" ({check.note})" if check.note else ""
            lines.append(f"{check.name}: {check.measured}, target {check.target}: {mark}{note}")
        return "\n".join(lines)


Number = TypeVar("Number", bound=int | float | tuple[int, ...] | tuple[float, ...])
_LEAST, _MOST = "least", "most"


def bounded(default: Number, *, most: float = math.inf) -> Number:
    """A setting that may be 0, and ``most`` at most (of a tuple: each item)."""
    return field(default=default, metadata={_LEAST: 0, _MOST: most})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every benchmark can be told; each adds its own. ``quick``: small enough for a test, targets are not judged.

    Whole numbers are counts, so at least 1, other numbers are above 0, and tuples have items, unless the default is less or a
    field is ``bounded``.
    """

    quick: bool = False
    threads: int = 1
    seed: int = bounded(0)


class Benchmark(Protocol):
    """A benchmark by its name. ``settings(quick)`` gives the defaults, ``run`` measures."""

    name: str
    summary: str

    def settings(self, quick: bool) -> Settings:
        """Default settings, small ones with ``quick``."""

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""


def override(settings: Settings, pairs: Sequence[str]) -> Settings:
    """``settings`` with ``key=value`` pairs from a command line; values are JSON or plain text (lists: ``1,2,3``).

    Raises:
        InputError: a key is unknown, a value has another type than the default, or is out of range.
    """
    known = {item.name: item for item in fields(settings)}
    changes: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or key not in known:
            raise InputError(f"unknown setting {pair!r}: write key=value, known keys are {', '.join(sorted(known))}")
        default = getattr(settings, key)
        changes[key] = _value(key, text, default)
        _check_range(key, text, changes[key], default, known[key].metadata)
    return replace(settings, **changes)


def _value(key: str, text: str, default: object) -> Any:
    if isinstance(default, tuple):
        items = [part for part in text.split(",") if part]
        return tuple(_value(key, part, default[0] if default else "") for part in items)
    if isinstance(default, str):
        return text
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = text
    if isinstance(default, bool) or isinstance(value, bool):
        fits = isinstance(default, bool) and isinstance(value, bool)
    elif isinstance(default, float):
        fits, value = isinstance(value, int | float), float(value) if isinstance(value, int | float) else value
    else:
        fits = isinstance(value, int)
    if not fits:
        raise InputError(f"setting {key}={text!r} must be like its default, {json.dumps(default)}")
    return value


def _check_range(key: str, text: str, value: object, default: object, bounds: Mapping[str, Any]) -> None:
    if isinstance(value, tuple):
        if not value and default:
            raise InputError(f"setting {key}={text!r} names nothing: give at least one, e.g. {key}={_text_of(default)}")
        for item in value:
            _check_range(key, text, item, default[0] if isinstance(default, tuple) and default else item, bounds)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    assert isinstance(default, int | float)
    least, most = bounds.get(_LEAST, 0 if default == 0 else None), bounds.get(_MOST, math.inf)
    if least is None:
        rule, fits = ("1 or more", value >= 1) if isinstance(default, int) else ("above 0", value > 0)
    else:
        rule, fits = f"{least:g} or more" if most == math.inf else f"from {least:g} to {most:g}", least <= value <= most
    if not (fits and math.isfinite(value)):
        raise InputError(f"setting {key}={text!r} must be {rule}, e.g. its default, {_text_of(default)}")


def _text_of(default: object) -> str:
    return ",".join(map(_text, default)) if isinstance(default, tuple) else _text(default)


def _aligned(rows: Sequence[Sequence[object]]) -> list[str]:
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in texts if i < len(row)) for i in range(len(texts[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in texts]


def _text(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
