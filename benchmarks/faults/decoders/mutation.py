"""Changes of inputs that keep their form: single values of a msgpack value or of a JSON document, else single bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.faults.decoders.target import Form, parse_input, write_input
from farflung.errors import FarflungError
from farflung.testing.damage import bent, hurt

__all__ = ["mutate"]

#: Share of the changes that know nothing of the form.
_BLIND = 0.25
#: What a text may become; most decoders bound the length of texts and reject such characters.
_TEXTS = ("", "\x1b[2J\n", "é" * 40, "a" * 5000, "\ud800", "../..", "1" * 5000, "nan", "-1", "1e999")


def mutate(form: Form, data: bytes, generator: np.random.Generator, blind: Callable[[bytes], bytes]) -> bytes:
    """Return ``data`` with one to three changes. ``blind`` changes bytes of any form."""
    if form is Form.BYTES or generator.random() < _BLIND:
        return blind(data)
    try:
        parsed = Form.PARSED if form is Form.JSON else form
        value = parse_input(parsed, data)
        for _ in range(int(generator.integers(1, 4))):
            value = _change(value, generator)
        return write_input(parsed, value)
    except (FarflungError, ValueError, RecursionError):
        return blind(data)


def _change(value: Any, generator: np.random.Generator) -> Any:
    """``value`` with a change somewhere in it."""
    if isinstance(value, dict) and value and generator.random() < 0.9:
        name = sorted(value)[int(generator.integers(len(value)))]
        kind = generator.random()
        if kind < 0.05:
            return {key: item for key, item in value.items() if key != name}
        if kind < 0.1:
            return {**value, f"{name}x": value[name]}
        return {**value, name: _change(value[name], generator)}
    if isinstance(value, list) and value and generator.random() < 0.9:
        place = int(generator.integers(len(value)))
        kind = generator.random()
        if kind < 0.05:
            return value[:place] + value[place + 1 :]
        if kind < 0.1:
            return [*value, value[place]]
        if kind < 0.15:
            other = int(generator.integers(len(value)))
            return [*value[:place], value[other], *value[place + 1 :]]
        return [*value[:place], _change(value[place], generator), *value[place + 1 :]]
    return _change_leaf(value, generator)


def _change_leaf(value: Any, generator: np.random.Generator) -> Any:
    kind = generator.random()
    if isinstance(value, bytes) and kind < 0.8:
        return bent(value, generator)
    if isinstance(value, str) and kind < 0.4:
        return bent(value.encode("utf-8", "replace"), generator).decode("utf-8", "replace")
    if isinstance(value, str) and kind < 0.6:
        return _TEXTS[int(generator.integers(len(_TEXTS)))]
    if type(value) in (int, float) and kind < 0.1:
        return int(generator.choice((-1, 1))) * 10 ** int(generator.choice((20, 310, 4000)))
    if isinstance(value, float) and kind < 0.4:
        return value * float(generator.choice((0.0, -1.0, 1e-300, 1e300, 0.5, 1e9)))
    return hurt(value, generator)
