"""Create and save the pictures of benchmarks; give every line of a picture a look and a label of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farflung.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

__all__ = ["Look", "label_panels", "looks", "new_figure", "save", "spread"]

_SUFFIXES = (".svg", ".png", ".pdf")

#: Okabe and Ito's palette with a darker yellow, then violet and gray: distinct for color-blind readers too.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#A67C00", "#56B4E9", "#7F3C8D", "#5F6B6D")
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (10, 3)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

#: Distance between two labels, as a multiple of the font size.
_LINE_HEIGHT = 1.25

#: Where labels begin, as a multiple of the panel's width.
_LABELS = 1.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How one name is drawn. Two looks of a picture never share color and dashes, nor color and marker."""

    color: str
    dashes: Any
    marker: str


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a different look for each name; pass the names of all panels, so that a name looks the same in each.

    Raises:
        ValueError: there are more names than looks (40).
    """
    found = {}
    for index, name in enumerate(dict.fromkeys(names)):
        cycle, color = divmod(index, len(_COLORS))
        if cycle >= len(_DASHES):
            raise ValueError(f"a picture shows at most {len(_COLORS) * len(_DASHES)} names; draw several pictures")
        found[name] = Look(
            color=_COLORS[color],
            dashes=_DASHES[(color + cycle) % len(_DASHES)],
            marker=_MARKERS[(color + cycle) % len(_MARKERS)],
        )
    return found


def spread(heights: Sequence[float], step: float) -> list[float]:
    """Return heights in the same order, moved as little as needed so that two of them are at least ``step`` apart.

    The heights are in [0, 1], and so are the results if they fit: the stack is shifted down where it would pass the top.
    """
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = list(heights)
    for before, after in itertools.pairwise(order):
        placed[after] = max(placed[after], placed[before] + step)
    top = 1.0
    for index in reversed(order):
        placed[index] = min(placed[index], top)
        top = placed[index] - step
    return placed


def label_panels(figure: Figure, panels: Mapping[Axes, Mapping[str, tuple[float, float]]], styles: Mapping[str, Look]) -> None:
    """Write names right of each panel, each at the height of its point and in its color, joined to the point by a thin line.

    Call it last: the heights follow from the layout and from the panels' limits.
    """
    notes = {axis: [_note(axis, name, point, styles[name].color) for name, point in panels[axis].items()] for axis in panels}
    figure.draw_without_rendering()  # lays the panels out, so that heights in pixels are known
    for axis, points in panels.items():
        if points:
            step = _LINE_HEIGHT * float(notes[axis][0].get_fontsize()) * figure.dpi / 72 / axis.get_window_extent().height
            to_axes = axis.transData + axis.transAxes.inverted()
            heights = [float(to_axes.transform(point)[1]) for point in points.values()]
            for note, height in zip(notes[axis], spread(heights, step), strict=True):
                note.set_position((_LABELS, height))


def _note(axis: Axes, name: str, point: tuple[float, float], color: str) -> Annotation:
    arrow = {"arrowstyle": "-", "color": color, "linewidth": 0.5, "alpha": 0.6, "shrinkA": 0, "shrinkB": 2}
    place: dict[str, Any] = {"xytext": (_LABELS, 0.5), "textcoords": "axes fraction", "annotation_clip": False}
    return axis.annotate(name, point, **place, va="center", color=color, fontsize="small", arrowprops=arrow)


def new_figure(path: Path, width: float, height: float) -> Figure:
    """Return an empty figure of ``width`` x ``height`` inches, to be saved at ``path``.

    Raises:
        InputError: the file's suffix names no picture.
    """
    if path.suffix not in _SUFFIXES:
        raise InputError(f"a plot is written as .svg, .png or .pdf, not as {path.name!r}")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write the figure to ``path``. An SVG has its words as text, not as outlines, and equal figures give equal files.

    Raises:
        InputError: that is not possible.
    """
    from matplotlib import rc_context

    metadata = {"Date": None} if path.suffix == ".svg" else None
    try:
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem, "font.sans-serif": ["DejaVu Sans"]}):
            figure.savefig(path, metadata=metadata)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
