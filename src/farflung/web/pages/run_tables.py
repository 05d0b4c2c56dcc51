"""What the page of a run says in words and tables, from what ``sources`` has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from farflung.job import JobSpec
from farflung.units import Bytes, Seconds, counted
from farflung.web.reports.tables import settings
from farflung.web.sources.checkpoints import CheckpointRow
from farflung.web.sources.live_run import LiveRun
from farflung.web.sources.run_analysis import Analysis
from farflung.web.sources.run_events import RunEvent
from farflung.web.sources.run_figures import device_use, link_uses, pace
from farflung.web.widgets.html_table import Cell, Markup, badge, meter

__all__ = [
    "bottleneck",
    "checkpoint_table",
    "device_table",
    "headline",
    "lead",
    "link_table",
    "settings_table",
    "state_of",
    "timeline",
]

_NOTHING = "–"
_TONES = {"running": "good", "finished": "good", "failed": "bad", "stopped": "warn", "waiting": "warn"}
_MOST_EVENTS, _MOST_LINKS = 30, 16


def state_of(run: LiveRun, status: Mapping[str, Any] | None) -> tuple[str, str]:
    """One word for how the run goes, and its tone. ``status``: what the broker reports (``None``: it does not know the run)."""
    word: str
    if run.result is not None:
        word = run.result.status
    elif status is not None:
        word = str(status["state"])
    else:
        word = "cut short"
    return word, _TONES.get(word, "")


def lead(run: LiveRun, status: Mapping[str, Any] | None) -> str:
    """A line on what runs where, or why it does not."""
    parts = [run.name]
    if run.plan is not None:
        count = len(run.plan.devices)
        where = ", ".join(run.plan.devices) if count <= 6 else f"{count} machines"
        parts.append(f"{counted(len(run.plan.stages), 'stage')} on {where}")
        parts.append(f"planner {run.plan.planner}, schedule {run.plan.schedule}")
    cause = run.result.cause if run.result is not None else str((status or {}).get("cause", ""))
    return " · ".join([*parts, *([cause] if cause else [])])


def headline(run: LiveRun) -> list[tuple[str, str]]:
    """The figures at the top, the most useful first; those of a run that is over are the figures of its report."""
    now, count = pace(run), len(run.series)
    steps = run.job.steps if run.job is not None else 0
    if now is None:
        return [("step", f"0 / {steps}")]
    columns = run.series.columns
    figures = [("step", f"{columns['step'][count - 1]:.0f} / {steps}"), ("loss", f"{columns['loss'][count - 1]:.4f}")]
    if run.series.evaluations:
        figures.append(("evaluation", f"{run.series.evaluations[-1].loss:.4f}"))
    figures.append((f"step time, {now.covers}", str(Seconds(now.step_seconds))))
    if now.ratio:
        figures.append(("measured / predicted", f"{now.ratio:.2f}"))
    rate = ("tokens/s", now.tokens_per_second) if now.tokens_per_second else ("samples/s", now.samples_per_second)
    figures.append((rate[0], f"{rate[1]:,.0f}" if rate[1] >= 100 else f"{rate[1]:.3g}"))
    if run.result is not None:
        figures.append(("total time", str(Seconds(run.result.seconds))))
    elif now.remaining is not None:
        figures.append(("remaining", str(Seconds(now.remaining))))
    figures.append(("traffic of the last step", str(Bytes(columns["sent"][count - 1]))))
    return figures


def link_table(run: LiveRun) -> list[Sequence[Cell]]:
    """A row for each direction, the busiest first."""
    uses = sorted(link_uses(run), key=lambda use: (-(use.share or 0.0), -use.nbytes))
    rows: list[Sequence[Cell]] = []
    for use in uses[:_MOST_LINKS]:
        ends = [f"{stage} {device}" for stage, device in zip(use.stages, (use.source, use.target), strict=True)]
        ends = [ends[0], "its replicas"] if use.stages[0] == use.stages[1] else ends
        smaller = f"{Bytes(use.dense)}" if use.dense > 1.02 * use.nbytes else _NOTHING
        share: Cell = _NOTHING if use.share is None else meter(use.share, f"{use.share:.1%}")
        error = _NOTHING if use.error is None else f"{use.error:.2%}"
        rows.append([*ends, str(Bytes(use.nbytes)), smaller, share, error])
    if len(uses) > _MOST_LINKS:
        rows.append([f"and {len(uses) - _MOST_LINKS} more"])
    return rows


def device_table(run: LiveRun) -> list[Sequence[Cell]]:
    """A row for each machine of the plan."""
    if run.plan is None:
        return []
    use = device_use(run)
    rows: list[Sequence[Cell]] = []
    for device in run.plan.devices:
        stages = run.plan.stages_of(device)
        share = use.get(device)
        rows.append(
            [
                device,
                ", ".join(str(stage.index) for stage in stages),
                str(sum(stage.stop - stage.start for stage in stages)),
                _NOTHING if share is None else meter(share, f"{share:.0%}"),
            ]
        )
    return rows


def bottleneck(found: Analysis) -> Markup:
    """What holds the step up, and what would shorten it."""
    if found.problem:
        return Markup(f'<p class="ff-empty">{escape(found.problem)}</p>')
    parts = []
    busiest = f"{escape(found.bound_by)}, for {found.bound_share:.0%} of the predicted step"
    if found.gains:
        parts.append(f"<p>Largest gain: <b>{escape(found.gains[0][0])}</b>. Busiest: {busiest}.</p>")
        items = "".join(
            f"<tr><td class='text wrap'>{escape(what)}</td><td>{escape(str(Seconds(seconds)))}</td><td>{factor:.2f} x</td></tr>"
            for what, seconds, factor in found.gains[:4]
        )
        head = '<th scope="col" class="text">what would help</th><th scope="col">step</th><th scope="col">faster</th>'
        table = f'<table class="ff-table"><thead><tr>{head}</tr></thead><tbody>{items}</tbody></table>'
        parts.append(f'<div class="ff-scroll" tabindex="0" role="region" aria-label="What would help">{table}</div>')
    else:
        parts.append(f"<p>No single machine or link at twice the speed would shorten the step. Busiest: {busiest}.</p>")
    parts.append(f'<p class="ff-note">{escape(found.memory)}.</p>')
    return Markup("".join(parts))


def checkpoint_table(rows: Sequence[CheckpointRow], export: str) -> list[Sequence[Cell]]:
    """``export``: the path of exports of this run (empty: the user has no right to export)."""
    found: list[Sequence[Cell]] = []
    for row in rows:
        step = "newest" if row is rows[0] else str(row.step)  # a run in progress may remove it before somebody clicks
        if row.problem:
            found.append([str(row.step), badge("damaged", "bad"), "", row.problem])
            continue
        link = Markup(f'<a href="{escape(export)}/{step}" aria-label="Export step {row.step}">Export</a>') if export else _NOTHING
        found.append([str(row.step), str(Bytes(row.nbytes)), str(row.shards), link])
    return found


def timeline(events: Sequence[RunEvent]) -> Markup:
    """The events, the newest first."""
    if not events:
        return Markup('<p class="ff-empty">No event yet.</p>')
    items = (
        f'<li class="{one.tone}"><time datetime="{escape(one.when)}">{escape(one.when[11:])}</time>'
        f"<span>{escape(one.text)}</span></li>"
        for one in events[:_MOST_EVENTS]
    )
    joined = "".join(items)
    return Markup(f'<ol class="ff-events" tabindex="0" aria-label="Events">{joined}</ol>')


def settings_table(job: JobSpec) -> list[Sequence[Cell]]:
    """The settings that differ from their defaults."""
    return [list(row) for row in settings(job).rows]
