"""A figure as data: panels of bars, curves or dots side by side, and the function that draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.picture import looks, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Bars", "Curves", "Panel", "draw", "number"]

#: Inches of a panel (alone, and beside others), of one bar, and of the frame around the bars.
_WIDTH, _NARROW, _BAR, _FRAME = 6.4, 4.8, 0.25, 1.3
_HEIGHT = 3.4

#: Inches between the lower edge of the bars and the legend.
_LEGEND = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Horizontal bars. ``rows``: by row, the value of each series. ``targets``: by row, a value that a mark shows.

    ``text``: what stands beside a bar instead of its value, by row; the only series then.
    """

    title: str
    unit: str
    rows: Mapping[str, Mapping[str, float]]
    targets: Mapping[str, float] = field(default_factory=dict)
    text: Mapping[str, str] = field(default_factory=dict)
    log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Lines, or dots. ``x``: empty if the order of the dots means nothing. ``levels``: horizontal lines by name.

    ``diagonal``: a line whose points have equal coordinates.
    """

    title: str
    x: str
    y: str
    curves: Mapping[str, Sequence[tuple[float, float]]]
    levels: Mapping[str, float] = field(default_factory=dict)
    dots: bool = False
    diagonal: bool = False
    log: bool = False
    from_zero: bool = True


Panel = Bars | Curves


def number(value: float) -> str:
    """Return the value in at most three digits that count, without powers of ten."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{float(f'{value:.3g}'):.10g}"


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Draw the panels side by side into ``path`` (.svg, .png or .pdf).

    Raises:
        InputError: the file's suffix names no picture, or it can't be written.
    """
    bars = [sum(map(len, panel.rows.values())) + 0.6 * len(panel.rows) for panel in panels if isinstance(panel, Bars)]
    heights = [_FRAME + _BAR * count for count in bars] + [_HEIGHT for panel in panels if isinstance(panel, Curves)]
    figure = new_figure(path, (_WIDTH if len(panels) == 1 else _NARROW * len(panels)), max(heights))
    for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if isinstance(panel, Bars):
            _bars(axis, panel)
        else:
            _curves(axis, panel)
        axis.set_title(panel.title)
    save(figure, path)


def _bars(axis: Axes, panel: Bars) -> None:
    series = list(dict.fromkeys(name for row in panel.rows.values() for name in row))
    colors = {name: look.color for name, look in looks(series).items()}
    place, ticks, drawn = 0.0, [], set[str]()
    widest = max(value for row in panel.rows.values() for value in row.values())
    near = widest if panel.text else 0.3 * widest
    for row, values in panel.rows.items():
        top, target = place, panel.targets.get(row, 0.0)
        for name, value in values.items():
            axis.barh(place, value, 0.8, color=colors[name], label="_" if name in drawn or len(series) == 1 else name)
            drawn.add(name)
            _value(axis, panel.text.get(row, number(value)), (value, place), target if target - value < near else value)
            place += 1
        ticks.append((top + place - 1) / 2)
        if row in panel.targets:
            label = "_" if "target" in drawn else "target"
            axis.vlines(panel.targets[row], top - 0.5, place - 0.5, colors="black", linestyles=(0, (3, 1)), label=label)
            drawn.add("target")
        place += 0.6
    axis.set_yticks(ticks, list(panel.rows))
    axis.invert_yaxis()
    axis.set(xlabel=panel.unit, xscale="log" if panel.log else "linear")
    axis.margins(x=0.26 if panel.text else 0.14)
    if panel.log:
        axis.xaxis.set_major_formatter("{x:,g}")
    if len(series) > 1 or panel.targets:
        from matplotlib.transforms import ScaledTranslation

        below = axis.transAxes + ScaledTranslation(0, -_LEGEND, axis.figure.dpi_scale_trans)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=below, ncols=3, fontsize="small", frameon=False)


def _value(axis: Axes, words: str, end: tuple[float, float], beside: float) -> None:
    """Write ``words`` beside the bar that ends at ``end``, or beside the mark of its target."""
    value, place = end
    shift, side = ((4, 0), "left") if value >= 0 else ((-4, 0), "right")
    at = (max(value, beside) if value >= 0 else value, place)
    axis.annotate(words, at, shift, textcoords="offset points", va="center", ha=side, fontsize="small")


def _curves(axis: Axes, panel: Curves) -> None:
    for name, look in looks(panel.curves).items():
        xs, ys = zip(*panel.curves[name], strict=True)
        line, marker = ("", look.marker) if panel.dots else (look.dashes, "")
        axis.plot(xs, ys, linestyle=line, marker=marker, markersize=4, color=look.color, label=name)
    for (name, level), dashes in zip(panel.levels.items(), [(0, (3, 1)), (0, (1, 1)), (0, (5, 1, 1, 1))], strict=False):
        axis.axhline(level, color="black", linewidth=1, linestyle=dashes, label=name)
    scale = "log" if panel.log else "linear"
    axis.set(xlabel=panel.x, ylabel=panel.y, xscale=scale, yscale=scale)
    if panel.log:
        axis.xaxis.set_major_formatter("{x:,g}")
        axis.yaxis.set_major_formatter("{x:,g}")
    elif panel.from_zero:
        axis.set_ylim(0)
    if panel.diagonal:
        axis.axline((1, 1), (10, 10), color="black", linewidth=1, linestyle=(0, (3, 1)), label="equal")
    axis.grid(alpha=0.3)
    if not panel.x:
        axis.set_xticks([])
    if len(panel.curves) + len(panel.levels) > 1 or panel.diagonal:
        axis.legend(fontsize="small")
