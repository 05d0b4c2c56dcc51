"""One run: loss, speed, bottleneck, links, last step, events, checkpoints, text, settings and log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from urllib.parse import quote

from nicegui import ui

from farflung.web.pages.actions import continue_run, stop_run
from farflung.web.pages.page import View
from farflung.web.pages.run_charts import RunChart, column, has_traffic, per_second, smooth
from farflung.web.pages.run_tables import (
    bottleneck,
    checkpoint_table,
    device_table,
    headline,
    lead,
    link_table,
    settings_table,
    state_of,
    timeline,
)
from farflung.web.sources.alerts import run_alerts
from farflung.web.sources.checkpoints import CheckpointRow, checkpoint_rows
from farflung.web.sources.last_step import last_step_chart
from farflung.web.sources.live_run import LiveRun
from farflung.web.sources.run_events import run_events
from farflung.web.widgets.alert_list import AlertList
from farflung.web.widgets.chart import Line, Unit
from farflung.web.widgets.figures import Figures
from farflung.web.widgets.html_table import HtmlTable, Markup, cell, markup
from farflung.web.widgets.layout import button, card, grid, note, row, title

__all__ = ["build"]

#: Seconds between two readings of traces, checkpoints and logs.
_SLOW = 3.0
_LOG_LINES, _EVENT_LINES = 300, 3000
#: Small charts: heading, column, unit, and where the figures are known (empty: always).
_SMALL: tuple[tuple[str, str, Unit, str], ...] = (
    ("Learning rate", "learning_rate", "number", ""),
    ("Gradient norm", "gradient_norm", "number", "Before clipping."),
    ("Divergence of replicas", "divergence", "percent", "Largest distance from their mean."),
    ("Codec error", "error", "percent", "Mean over the links, relative."),
)
#: Columns with a value in some steps only: codecs and replicas are measured now and then.
_SPARSE = ("divergence", "error")


def build(view: View) -> None:
    """Build the page."""
    name = view.parameters["run"]
    run = view.sources.run(name) if view.sees(name) else None
    if run is None:
        with title(name):
            pass
        note("This dashboard has no such run, or the run belongs to somebody else.")
        return
    page = _RunPage(view, run)
    view.follow(page.show)
    ui.timer(_SLOW, page.read_slowly, immediate=True)


class _RunPage:
    """The page in one browser. ``show`` brings it up to date; ``read_slowly`` reads files that are large or change rarely."""

    def __init__(self, view: View, run: LiveRun) -> None:
        self._view, self._run, self._name = view, run, run.name
        self._tokens = run.job is not None and run.job.data.tokenized
        #: Cards, and whether they have anything to show.
        self._optional: list[tuple[ui.element, Callable[[], bool]]] = []
        with title(run.job.name if run.job is not None else run.name) as self._state:
            self._actions()
        self._lead = markup(tag="p").classes("ff-lead")
        self._progress = markup(Markup("<span></span>")).classes("ff-progress")
        self._alerts = AlertList()
        self._figures = Figures()
        with grid():
            self._charts = self._make_charts()
            self._make_tables()
            self._make_texts()
        self._step = -1
        self._log_tail = run.log(_EVENT_LINES)

    def _actions(self) -> None:
        run, view = self._name, self._view
        if view.may_control(run):
            self._stop = button("Stop", lambda: stop_run(view, run), "danger")
            self._continue = button("Continue", lambda: continue_run(view, run))
            self._continue.set_visibility(False)

    def _make_charts(self) -> list[RunChart]:
        run, found = self._run, []
        with card("Loss", "half"):
            lines = [
                (run, Line(name="training", color=4), column("loss")),
                (run, Line(name="mean of 10 steps", color=0), smooth("loss")),
            ]
            found.append(RunChart("Loss", lines, evaluations=[run]))
        with card("Step time", "half", "Measured against the plan's prediction."):
            lines = [
                (run, Line(name="measured", color=4), column("seconds")),
                (run, Line(name="mean of 10 steps", color=0), smooth("seconds")),
                (run, Line(name="predicted", color=1, dashed=True), column("predicted")),
            ]
            found.append(RunChart("Step time", lines, unit="seconds", zero=True))
        with row():
            with card("Bottleneck", "third broad"):
                self._bottleneck = markup(Markup('<p class="ff-empty">Simulating the plan ...</p>'))
            with card("Tokens per second" if self._tokens else "Samples per second", "third"):
                value = per_second("tokens" if self._tokens else "samples")
                found.append(RunChart("Throughput", [(run, Line(name="per second", color=2), value)], zero=True))
            with card("Loss against bytes", "third", "On all links, mean of 10 steps.") as box:
                line = Line(name="loss", color=0)
                found.append(RunChart("Loss against bytes", [(run, line, smooth("loss"))], x="traffic"))
            self._optional.append((box, partial(has_traffic, run)))
            for heading, name, unit, remark in _SMALL:
                with card(heading, "third", remark) as box:
                    line = Line(name=heading.lower(), color=4, symbols=name in _SPARSE)
                    found.append(RunChart(heading, [(run, line, column(name))], unit=unit, zero=True))
                if remark:
                    self._optional.append((box, partial(run.series.known, name)))
        return found

    def _make_tables(self) -> None:
        with card("Links", "half", "Means of the newest 20 steps."):
            head = ("from", "to", "per step", "without codec", "link in use", "codec error")
            self._links = HtmlTable("Links", head, text_columns=2, empty="No traffic yet.")
        with card("Machines", "half", "Means of the newest 20 steps."):
            self._devices = HtmlTable("Machines", ("machine", "stages", "operators", "computing"), text_columns=2)
        with card("Last step"):
            self._chart = (
                markup(Markup('<p class="ff-empty">No trace yet.</p>'))
                .classes("ff-svg")
                .props('tabindex=0 role=region aria-label="Time chart"')
            )
        with card("Events", "half bounded"):
            self._events = markup(Markup('<p class="ff-empty">No event yet.</p>'))
        with card("Checkpoints", "half bounded"):
            columns = ("step", "size", "shards", "weights")
            self._checkpoints = HtmlTable("Checkpoints", columns, text_columns=0, empty="No checkpoint yet.")

    def _make_texts(self) -> None:
        generates = self._run.job is not None and self._run.job.generate.tokens > 0
        with card("Generated text", "half bounded") as box:
            self._text = markup(Markup('<p class="ff-empty">The model generates it at the end.</p>'))
        box.set_visibility(generates)
        with card("Settings", "half bounded" if generates else "bounded", "Every other setting has its default."):
            self._settings = HtmlTable("Settings", ("setting", "value"), text_columns=2)
        with card("Log"):
            self._log = markup(Markup(""), tag="pre").classes("ff-pre log").props('tabindex=0 role=region aria-label="Log"')

    def show(self) -> None:
        """Show what is new."""
        self._view.sources.run(self._name)  # keeps it fresh
        run, status = self._run, self._view.sources.status(self._name)
        state, tone = state_of(run, status)
        self._state.show(state, tone)
        self._lead.set_content(cell(lead(run, status)))
        steps, count = (run.job.steps if run.job is not None else 0), len(run.series)
        done = run.series.columns["step"][count - 1] if count else 0.0
        self._progress.set_content(f'<span style="width:{100 * done / max(steps, 1):.1f}%"></span>')
        if self._view.may_control(self._name):
            over = run.result is not None
            self._stop.set_visibility(not over and state != "stopping")
            self._continue.set_visibility(over and done < steps)
        analysis = self._view.sources.analyses.of(run.folder.root)
        self._alerts.show(run_alerts(run, analysis))
        self._figures.show(headline(run))
        for chart in self._charts:
            chart.update()
        for box, filled in self._optional:
            box.set_visibility(filled())
        if analysis is not None:
            self._bottleneck.set_content(bottleneck(analysis))
        self._links.show(link_table(run))
        self._devices.show(device_table(run))
        if run.job is not None:
            self._settings.show(settings_table(run.job))
        if run.result is not None and run.result.sample:
            self._text.set_content(f'<pre class="ff-pre">{cell(run.result.sample)}</pre>')

    async def read_slowly(self) -> None:
        """Read the trace, the checkpoints and the log on a thread, and show them."""
        rows, log, drawn = await asyncio.to_thread(self._read)
        self._checkpoints.show(
            checkpoint_table(rows, f"/export/{quote(self._name)}" if self._view.may_export(self._name) else "")
        )
        self._events.set_content(timeline(run_events(log)))
        self._log.set_content(cell("\n".join(log[-_LOG_LINES:])))
        if drawn is not None and drawn[0] != self._step:
            self._step, picture = drawn
            self._chart.set_content(picture.replace("@media (prefers-color-scheme:dark){", "body.body--dark{"))

    def _read(self) -> tuple[list[CheckpointRow], list[str], tuple[int, str] | None]:
        run = self._run
        drawn = None if run.plan is None else last_step_chart(run.folder.events, run.plan)
        return list(checkpoint_rows(run.folder.root)), self._log_tail.read(), drawn
