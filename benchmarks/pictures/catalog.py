"""Every figure that is drawn from stored results, by the name of its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.pictures import faults, network, planning, training
from benchmarks.pictures.charts import Panel, draw

__all__ = ["PICTURES", "draw_all"]

PICTURES: dict[str, Callable[[Callable[[str], Any]], list[Panel]]] = {
    **faults.PICTURES,
    **network.PICTURES,
    **planning.PICTURES,
    **training.PICTURES,
}


def draw_all(stored: Path, folder: Path) -> None:
    """Draw each figure into ``folder`` from the results in ``stored``.

    Raises:
        InputError: a picture can't be written.
    """
    for name, panels in PICTURES.items():
        draw(panels(lambda result: read(stored / f"{result}.json")), folder / f"{name}.svg")


def read(result: Path) -> Any:
    """Return the figures of a stored result."""
    return json.loads(result.read_text(encoding="utf-8"))["figures"]
