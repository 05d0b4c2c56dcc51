"""A plan drawn: map, time chart of one simulated step, words and tables as one page (HTML), or both pictures (SVG)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from farflung.cluster import Topology
from farflung.errors import DataError, InputError
from farflung.plan import Estimate, Plan, device_rows, link_rows, stage_rows
from farflung.simulator import Simulation
from farflung.telemetry import ProcessTrace, Span
from farflung.units import Seconds, counted
from farflung.web.reports.ink import Picture, document, inline
from farflung.web.reports.page import Page, to_html
from farflung.web.reports.plan_map import plan_map
from farflung.web.reports.plots import Plot
from farflung.web.reports.run import Run
from farflung.web.reports.scene import scene_of_plan, scene_of_run
from farflung.web.reports.tables import Table, number
from farflung.web.reports.time_chart import ChartRow, time_chart

__all__ = ["DRAWINGS", "PlanDrawing", "check_drawing", "run_drawings", "write_drawing"]

#: What a drawing may be written as.
DRAWINGS = (".html", ".svg")


@dataclass(frozen=True, kw_only=True)
class PlanDrawing:
    """What is drawn: a plan with its topology, its estimate and a simulation with spans. ``texts``: (heading, words)."""

    name: str
    plan: Plan
    topology: Topology
    estimate: Estimate
    simulation: Simulation
    texts: tuple[tuple[str, str], ...] = ()


def check_drawing(target: Path) -> None:
    """Whether ``target`` can be drawn to.

    Raises:
        InputError: it ends in something else than .html or .svg.
    """
    if target.suffix not in DRAWINGS:
        raise InputError(f"a drawing ends in {' or '.join(DRAWINGS)}, got {target.name!r}")


def write_drawing(drawing: PlanDrawing, target: Path) -> Path:
    """Write the plan to ``target``: ``.html`` (a page that loads nothing) or ``.svg``; return it.

    Raises:
        InputError: ``target`` ends in something else.
        DataError: it can't be written.
    """
    check_drawing(target)
    pictures = _pictures(drawing)
    name = f"Plan of {drawing.name}"
    text = document(pictures, name) if target.suffix == ".svg" else to_html(_page(drawing, pictures))
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror}; choose a folder that can be written") from None
    return target


def _pictures(drawing: PlanDrawing) -> tuple[Picture, Picture]:
    plan = drawing.plan
    scene = scene_of_plan(plan, drawing.topology, drawing.estimate, drawing.simulation)
    chart = time_chart(_rows(plan, drawing.simulation.traces), len(plan.stages), "One simulated step")
    return plan_map(scene), chart


def _rows(plan: Plan, traces: tuple[ProcessTrace, ...]) -> list[ChartRow]:
    """Rows in the order of the stages; processes that the plan does not know stay out."""
    known = {trace.process: trace for trace in traces}
    held = [(tuple(stage.index for stage in plan.stages_of(name)), name) for name in plan.devices if name in known]
    return [ChartRow(trace=known[name], stages=stages) for stages, name in sorted(held)]


def _page(drawing: PlanDrawing, pictures: tuple[Picture, Picture]) -> Page:
    plan, found = drawing.plan, drawing.simulation
    fullest = max(drawing.estimate.devices, key=lambda device: device.memory_bytes / device.memory_limit)
    figures = (
        ("simulated step", str(Seconds(found.step_seconds))),
        ("samples/s", number(found.samples_per_second)),
        ("stage" if len(plan.stages) == 1 else "stages", str(len(plan.stages))),
        ("devices", f"{len(plan.devices)} of {len(drawing.topology)}"),
        ("of the devices' time is waiting", f"{found.bubble:.0%}"),
        (f"of the memory of {fullest.device}, the fullest", f"{fullest.memory_bytes / fullest.memory_limit:.0%}"),
    )
    captions = (
        "Where each stage runs, and what the links carry in one step. Point at a device or link for its figures.",
        "What each device computes, sends and receives in virtual time. Point at a block for its times.",
    )
    return Page(
        title=f"Plan of {drawing.name}",
        lead=f"Planner {plan.planner}, schedule {plan.schedule}, "
        f"{counted(len(plan.micro_batch_sizes), 'micro-batch', 'micro-batches')} of "
        f"{counted(max(plan.micro_batch_sizes), 'sample')} at most, on {drawing.topology.name}. Bound by {found.bound_by}.",
        figures=figures,
        plots=tuple(_plot(picture, caption) for picture, caption in zip(pictures, captions, strict=True)),
        tables=tuple(_tables(drawing.estimate)),
        texts=drawing.texts,
    )


def _plot(picture: Picture, caption: str) -> Plot:
    return Plot(name=picture.name, title=picture.title, caption=caption, svg=inline(picture), wide=True)


def _tables(estimate: Estimate) -> list[Table]:
    found = (("Stages", stage_rows(estimate), 4), ("Devices", device_rows(estimate), 1), ("Links", link_rows(estimate), 3))
    return [Table(title=title, head=rows[0], rows=tuple(rows[1:]), text_columns=text) for title, rows, text in found]


def run_drawings(run: Run, traces: tuple[ProcessTrace, ...] = ()) -> list[Plot]:
    """The map of a run's plan, and the chart of a step of median length where the run left a trace (no step: nothing)."""
    step = _typical_step(run)
    if step < 0:
        return []
    found = [_plot(plan_map(scene_of_run(run)), "Where each stage ran, and what the links carried in a mean step.")]
    rows = [row for row in _rows(run.plan, _of_step(traces, step)) if row.trace.spans]
    if rows:
        seconds = next(record.seconds for record in run.steps if record.step == step)
        chart = time_chart(rows, len(run.plan.stages), "One step as it was")
        caption = f"Step {step + 1}, which took {Seconds(seconds)}: what each worker computed, sent and received."
        found.append(_plot(chart, caption))
    return found


def _typical_step(run: Run) -> int:
    """The step nearest to the median time of the last plan (-1: there is none); after a recovery, one that was made only once."""
    if not run.steps:
        return -1
    median = run.plan_medians[-1]
    # A worker is at most one step ahead, so later steps were not begun before the loss.
    begun = max((record.step + record.replayed + 1 for record in run.recoveries), default=-1)
    steps = [record for record in run.steps if record.step > begun] or run.present_steps or run.steps
    return min(steps, key=lambda record: (abs(record.seconds - median), record.step)).step


def _of_step(traces: tuple[ProcessTrace, ...], step: int) -> tuple[ProcessTrace, ...]:
    def own(span: Span) -> bool:
        return span.step == step

    return tuple(
        ProcessTrace(process=trace.process, spans=tuple(filter(own, trace.spans)), offset=trace.offset) for trace in traces
    )
