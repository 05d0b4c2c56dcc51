"""The plots of a report as SVG text (matplotlib's object interface; no window system, no global figure)."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from farflung.units import Bytes, Seconds
from farflung.web.reports.run import Run

__all__ = ["Plot", "compare_plots", "run_plots"]

#: Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F3C8D", "#5F6B6D")
#: Inches. A page 390 pixels wide shows a plot at about three quarters of this size, and its text at 9 pixels.
_SIZE = (4.8, 3.0)
_MAX_POINTS = 1200
_MAX_LINKS = 8
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "DejaVu Sans"],
    "font.size": 9.5,
    "axes.edgecolor": "#9aa5ab",
    "axes.labelcolor": "#46535a",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6eaec",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "xtick.color": "#6b777d",
    "ytick.color": "#6b777d",
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "text.parse_math": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One picture: ``name`` for files, ``title`` and ``caption`` for people, ``svg`` from ``<svg`` on.

    ``wide``: it takes the whole width of a page, and has colours of its own for dark screens.
    """

    name: str
    title: str
    caption: str
    svg: str
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A line to draw; ``label`` empty: not in the legend."""

    xs: Sequence[float]
    ys: Sequence[float]
    colour: str
    label: str = ""
    style: str = "-"
    alpha: float = 1.0
    marker: str = ""


def run_plots(run: Run) -> list[Plot]:
    """The plots of one run; none when no step was finished."""
    if not run.steps:
        return []
    plots = [_loss(run), _divergence(run), _step_time(run), _prediction(run)]
    return [plot for plot in [*plots, _link_bytes(run) if run.links else None] if plot is not None]


def compare_plots(runs: Sequence[Run]) -> list[Plot]:
    """Loss against time, bytes and steps, for the runs that finished a step."""
    shown = [(run, COLOURS[i % len(COLOURS)]) for i, run in enumerate(runs) if run.steps]
    if not shown:
        return []

    def lines(across: Callable[[Run], Sequence[float]]) -> list[_Line]:
        return [_Line(xs=across(run), ys=run.smooth_losses, colour=colour, label=run.label) for run, colour in shown]

    def steps(run: Run) -> list[float]:
        return [record.step + 1 for record in run.steps]

    plots = [
        _draw(
            "loss-time", "Loss against time", "Smoothed training loss.", lines(lambda r: r.clock), ("seconds of training", "loss")
        ),
        _draw("loss-steps", "Loss against steps", "Smoothed training loss.", lines(steps), ("step", "loss")),
    ]
    if any(run.total_bytes for run, _ in shown):
        caption = "Smoothed training loss; bytes on all links, logarithmic."
        axes = ("bytes over the links", "loss")
        plot = _draw("loss-bytes", "Loss against bytes", caption, lines(lambda r: r.traffic), axes, _x_bytes_log)
        plots.insert(1, plot)
    return plots


def _loss(run: Run) -> Plot:
    steps = [record.step + 1 for record in run.steps]
    lines = [
        _Line(xs=steps, ys=[record.loss for record in run.steps], colour=COLOURS[0], alpha=0.3),
        _Line(xs=steps, ys=run.smooth_losses, colour=COLOURS[0], label="training, smoothed"),
    ]
    if run.evaluations:
        points = sorted({record.step: record.loss for record in run.evaluations}.items())
        line = _Line(
            xs=[step for step, _ in points], ys=[loss for _, loss in points], colour=COLOURS[1], label="evaluation", marker="o"
        )
        lines.append(line)
    return _draw("loss", "Loss", "Mean over the step's micro-batches.", lines, ("step", "loss"))


def _divergence(run: Run) -> Plot | None:
    """Under a sync strategy that lets replicas drift: how far apart they were when they agreed."""
    seen = [(record.step + 1, 100.0 * record.divergence) for record in run.steps if record.divergence is not None]
    if not seen:
        return None
    line = _Line(xs=[step for step, _ in seen], ys=[part for _, part in seen], colour=COLOURS[3], marker="o")
    caption = "Largest distance of a replica's parameters from the replicas' mean, in percent of it, in steps that averaged some."
    return _draw("divergence", "Replicas apart", caption, [line], ("step", "percent"))


def _step_time(run: Run) -> Plot:
    steps = [record.step + 1 for record in run.steps]
    lines = [_Line(xs=steps, ys=[r.seconds for r in run.steps], colour=COLOURS[0], label="whole step")]
    stages = sorted({stage for record in run.steps for stage in record.busy_seconds})
    slowest = max(stages, key=lambda s: sum(r.busy_seconds.get(s, 0.0) for r in run.steps), default=None)
    caption = "Wall-clock time of each step."
    if slowest is not None:
        busy = [record.busy_seconds.get(slowest, math.nan) for record in run.steps]
        lines.append(_Line(xs=steps, ys=busy, colour=COLOURS[2], label=f"computing, stage {slowest} (busiest)"))
        caption = "Wall-clock time of each step, and the part of it in which the busiest stage computed."
    top, hidden = _headroom(run)
    return _draw("step-time", "Step time", caption + hidden, lines, ("step", "seconds"), top)


def _prediction(run: Run) -> Plot | None:
    if not run.predicted_ratio:
        return None
    steps = [record.step + 1 for record in run.steps]
    measured = [record.seconds for record in run.steps]
    predicted = [math.nan if r.predicted_seconds is None else r.predicted_seconds for r in run.steps]
    lines = [
        _Line(xs=steps, ys=measured, colour=COLOURS[0], alpha=0.35, label="measured"),
        _Line(
            xs=steps,
            ys=run.plan_medians,
            colour=COLOURS[0],
            label="measured, median" + (" of each plan" if run.recoveries else ""),
        ),
        _Line(xs=steps, ys=predicted, colour=COLOURS[1], style="--", label="predicted by the plan"),
    ]
    caption = f"The median step took {run.predicted_ratio:.2f} times the time that its plan predicted."
    top, hidden = _headroom(run)
    return _draw("prediction", "Predicted against measured", caption + hidden, lines, ("step", "seconds"), top)


def _link_bytes(run: Run) -> Plot:
    steps = [record.step + 1 for record in run.present_steps]
    busiest = sorted(run.links, key=run.link_mean, reverse=True)
    lines = [
        _Line(
            xs=steps,
            ys=[record.link_bytes.get(link, 0) for record in run.present_steps],
            colour=COLOURS[i % len(COLOURS)],
            label=_link_label(run, *link),
            style="-" if link[0] < link[1] else "--",
        )
        for i, link in enumerate(busiest[:_MAX_LINKS])
    ]
    caption = "Activations solid, gradients dashed."
    if any(source == target for source, target in busiest):
        caption += " Between replicas: all that those of a stage send each other."
    if run.recoveries:
        caption += f" From step {run.recoveries[-1].step + 1} on, since the last recovery."
    if len(busiest) > _MAX_LINKS:
        caption += f" The {_MAX_LINKS} busiest of {len(busiest)} links."
    means = [run.link_mean(link) for link in busiest[:_MAX_LINKS]]
    spread = means[-1] > 0 and means[0] / means[-1] > 20
    return _draw("link-bytes", "Bytes per link", caption, lines, ("step", "bytes per step"), _y_bytes_log if spread else _y_bytes)


def _link_label(run: Run, source: int, target: int) -> str:
    if source == target:
        return f"between replicas of stage {source}"
    return f"{source} → {target} ({run.device(source)} → {run.device(target)})"


def _draw(
    name: str,
    title: str,
    caption: str,
    lines: Sequence[_Line],
    axes: tuple[str, str],
    adjust: Callable[[Axes], None] | None = None,
) -> Plot:
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=_SIZE, layout="constrained")
        ax = figure.add_subplot()
        handles: list[Any] = []
        for line in lines:
            xs, ys = _thin(line.xs, line.ys)
            marker = line.marker or ("o" if len(xs) == 1 else "")
            (handle,) = ax.plot(xs, ys, color=line.colour, ls=line.style, alpha=line.alpha, marker=marker, ms=4)
            if line.label:
                handles.append((handle, line.label))
        ax.set_xlabel(axes[0])
        ax.set_ylabel(axes[1])
        ax.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=axes[0] == "step", min_n_ticks=1))
        if adjust is not None:
            adjust(ax)
        if len(handles) > 1:
            # The artists get their labels as texts of the legend, because a label that begins with "_" would be left out.
            legend = ax.legend([handle for handle, _ in handles], ["-"] * len(handles), fontsize=8.5)
            for text, (_, label) in zip(legend.get_texts(), handles, strict=True):
                text.set_text(label if len(label) <= 60 else label[:59] + "…")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = buffer.getvalue()
    return Plot(name=name, title=title, caption=caption, svg=svg[svg.index("<svg") :])


def _thin(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most ``_MAX_POINTS`` points, each the middle of its bin by the mean of its finite values."""
    finite = [y if math.isfinite(y) else math.nan for y in ys]
    width = -(-len(finite) // _MAX_POINTS)
    if width <= 1:
        return list(xs), finite
    bins = [range(start, min(start + width, len(finite))) for start in range(0, len(finite), width)]
    kept = [[finite[i] for i in bin_ if not math.isnan(finite[i])] for bin_ in bins]
    means = [sum(values) / len(values) if values else math.nan for values in kept]
    return [xs[bin_[len(bin_) // 2]] for bin_ in bins], means


def _headroom(run: Run) -> tuple[Callable[[Axes], None], str]:
    """The y axis of times: from zero, and up to four medians where single slow steps would squash the rest; says how many."""
    seconds = [record.seconds for record in run.steps]
    limit = 4.0 * max(run.median_seconds or 0.0, run.predicted_seconds or 0.0)
    above = sum(value > limit for value in seconds)
    squash = limit > 0 and max(seconds) > 1.5 * limit

    def adjust(ax: Axes) -> None:
        ax.set_ylim(bottom=0.0, top=limit if squash else None)

    plural = "step takes" if above == 1 else "steps take"
    return adjust, f" {above} {plural} longer than shown, at most {Seconds(max(seconds))}." if squash else ""


def _x_bytes_log(ax: Axes) -> None:
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(_bytes))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _y_bytes(ax: Axes) -> None:
    ax.set_ylim(bottom=0.0)
    ax.yaxis.set_major_formatter(FuncFormatter(_bytes))


def _y_bytes_log(ax: Axes) -> None:
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(_bytes))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _bytes(value: float, _position: int | None = None) -> str:
    return str(Bytes(value))
