"""Where the pictures of benchmarks go: the file's suffix chooses the format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from farflung.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["new_figure", "save"]

_SUFFIXES = (".svg", ".png", ".pdf")


def new_figure(path: Path, width: float, height: float) -> Figure:
    """An empty figure of ``width`` x ``height`` inches, to be saved at ``path``.

    Raises:
        InputError: the file's suffix names no picture.
    """
    if path.suffix not in _SUFFIXES:
        raise InputError(f"a plot is written as .svg, .png or .pdf, not as {path.name!r}")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write it.

    Raises:
        InputError: that is not possible.
    """
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
