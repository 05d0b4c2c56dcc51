"""The picture of the ``hybrid-ps`` benchmark: Table 2 by case, Figure 2 by the chance of a loss, Figure 4 by devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.picture import Look, label_panels, looks, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Draw into ``path`` (.svg, .png or .pdf): seconds of a batch for each system.

    Raises:
        InputError: the file's suffix names no picture, or it can't be written.
    """
    models = list(dict.fromkeys(run["model"] for run in figures["table_2"]))
    ratios = list(dict.fromkeys(run["ratio"] for run in figures["figure_2"]))
    titles = [(f"{model}, Table 2", "case", [run for run in figures["table_2"] if run["model"] == model]) for model in models]
    titles += [
        (f"{ratio:.0%} unreliable, Figure 2", "chance", [run for run in figures["figure_2"] if run["ratio"] == ratio])
        for ratio in ratios
    ]
    titles.append(("Figure 4", "devices", figures["figure_4"]))
    styles = looks(figures["table_2"][0]["seconds"])
    figure = new_figure(path, 4.2 * len(titles), 3.4)
    axes = figure.subplots(1, len(titles), squeeze=False)[0]
    axes[0].set_ylabel("seconds per batch")
    panels = {}
    for axis, (title, key, runs) in zip(axes, titles, strict=True):
        panels[axis] = _lines(axis, runs, key, styles)
        axis.set(title=title, xlabel="chance of a loss" if key == "chance" else key, ylim=0)
    label_panels(figure, panels, styles)
    save(figure, path)


def _lines(axis: Axes, runs: Sequence[Mapping[str, Any]], key: str, styles: Mapping[str, Look]) -> dict[str, tuple[float, float]]:
    """Draw a line for each system; return where the lines end."""
    ends = {}
    for system, look in styles.items():
        xs, ys = [run[key] for run in runs], [run["seconds"][system] for run in runs]
        axis.plot(xs, ys, marker=look.marker, color=look.color, linestyle=look.dashes)
        ends[system] = (xs[-1], ys[-1])
    return ends
