"""What if: a job on a cluster that may not exist yet, with figures that follow each change."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from nicegui import ui

from farflung.api.what_if import View as WhatIfView
from farflung.api.what_if import WhatIfSession
from farflung.api.what_if.evaluation import NOT_INCLUDED
from farflung.api.what_if.sources import job_of_text, preset_job, run_documents, topology_of_text
from farflung.cluster import Topology
from farflung.errors import FarflungError, InputError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.simulator import PriceTable
from farflung.units import counted
from farflung.web.pages.page import View
from farflung.web.pages.what_if_results import MEMORY_HEAD, bottleneck, headline, machine_figures, map_of, state_of
from farflung.web.pages.what_if_scenario import (
    OWN_TEXT,
    check_size,
    cost_note,
    job_fields,
    link_rows,
    machine_rows,
    prices_of,
    scenario_of,
    setting_fields,
)
from farflung.web.serving.sign_in import Role
from farflung.web.sources.measured_topology import measured_topology
from farflung.web.sources.what_if_sessions import WhatIfSessions
from farflung.web.widgets.figures import Figures
from farflung.web.widgets.form import Form, Text
from farflung.web.widgets.html_table import HtmlTable, Markup, cell, markup, table_html
from farflung.web.widgets.layout import button, card, grid, lead, note, title

__all__ = ["WhatIfPage", "build"]

_SESSIONS = WhatIfSessions()
#: Seconds between two looks for a new view.
_POLL = 0.1
#: Fields that are remembered; a page has fewer.
_MOST_FIELDS = 2000
#: Characters of a topology that the page offers for editing.
_LONGEST_EDITED = 100_000


def build(view: View) -> None:
    """Build the page."""
    page = WhatIfPage(view)
    ui.context.client.on_delete(lambda: asyncio.to_thread(page.close))
    ui.timer(_POLL, page.show)
    ui.timer(0.0, page.load, once=True)


class WhatIfPage:
    """The page in one browser. The session publishes views on its own thread; a timer shows the newest."""

    def __init__(self, view: View) -> None:
        self._view = view
        #: Field -> text, as the browser sent it. Fields that nobody changed are absent.
        self._values: dict[str, str] = {}
        self._job: JobSpec | None = None
        self._graph: Graph | None = None
        self._topology: Topology | None = None
        self._session: WhatIfSession | None = None
        #: Held while job and topology are read: a choice that is made meanwhile is read afterwards.
        self._reading = asyncio.Lock()
        #: The newest view that the session published, the one that is shown, and the newest evaluation.
        self._newest: WhatIfView | None = None
        self._shown: WhatIfView | None = None
        self._last: WhatIfView | None = None
        with title("What if") as self._state:
            button("Save plan", self._save_plan)
            button("Save topology", self._save_topology)
        lead("Evaluate a cluster before you rent it. Figures follow each change: first for the present plan, then for a new one.")
        self._error = markup(tag="p").classes("ff-error").props('role="status"')
        self._figures = Figures(headline(None))
        self._cost = note("")
        with grid():
            self._make_controls()
            self._make_results()

    def _make_controls(self) -> None:
        view = self._view
        runs = [(name, name) for name in view.sources.names if view.sees(name)][-30:]
        own = view.user.role is not Role.VIEWER
        with card("Scenario", "third beside"):
            Form(self._choose, job_fields(runs, own=own, measured=view.sources.has_broker))
            self._texts = {"job": Form(self._choose), "topology": Form(self._choose)}
            self._settings = Form(self._change)

    def _make_results(self) -> None:
        with card("Plan", "wide"):
            self._map = markup(Markup('<p class="ff-empty">The first plan takes some seconds.</p>')).classes("ff-svg")
            self._map.props('tabindex=0 role=region aria-label="Map of the plan"')
            self._plan = note("")
        with card("Memory and load", "wide"):
            self._memory = HtmlTable("Memory and load", MEMORY_HEAD, text_columns=2, empty="No plan yet.")
        with card("Bottleneck", "wide"):
            self._bottleneck = markup(bottleneck(None, None))
        with card("Machines", "half", "How many, how fast, how much memory, for which rent."):
            self._machines = Form(self._change)
        with card("Links", "half", "One way; both directions change."):
            self._links = Form(self._change)
        with card("What the figures leave out"):
            items = "".join(f"<li>{cell(text)}</li>" for text in NOT_INCLUDED)
            markup(Markup(f'<ul class="ff-list">{items}</ul>'))
            note("Energy comes from typical watts of the kind of device. Rent is that of the machines that the plan uses.")

    async def load(self) -> None:
        """Begin with the first job and topology."""
        try:
            self._session = _SESSIONS.open(self._publish)
        except InputError as error:
            self._fail(str(error))
            return
        self._values = {"job": "model:gpt2-xl", "topology": "preset:home-lab"}
        await self.read_sources("job", "topology")

    def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            _SESSIONS.close(session)

    def _publish(self, view: WhatIfView) -> None:
        self._newest = view

    async def _choose(self, name: str, value: str) -> None:
        """Another job or topology: its own controls replace those of the last one."""
        self._take(name, value)
        if name in self._texts:
            self._values.pop(f"{name}_text", None)
            self._texts[name].show([self._text_field(name)] if value == OWN_TEXT else [])
        await self.read_sources(name.removesuffix("_text"))

    def _text_field(self, name: str) -> Text:
        """Return the field for the text of a file. That of a topology begins with the present one, unless that is too long."""
        if name == "job":
            return Text(name="job_text", label="Job file (TOML)", hint="[model] ...")
        present = "" if self._topology is None else self._topology.to_toml(digits=4)
        if len(present) <= _LONGEST_EDITED:
            self._values["topology_text"] = present
        return Text(
            name="topology_text",
            label="Topology file (TOML)",
            hint="[[device]] ...",
            value=self._values.get("topology_text", ""),
        )

    async def read_sources(self, *what: str) -> None:
        """Read the job, the topology or both, as the user chose them, then evaluate."""
        async with self._reading:
            try:
                if "job" in what:
                    await self._read_job()
                if "topology" in what:
                    await self._read_topology()
            except FarflungError as error:
                self._fail(str(error))
                return
            self._ask()

    async def _read_job(self) -> None:
        kind, _, name = self._values["job"].partition(":")
        self._graph = None
        if kind == "run":
            found = await asyncio.to_thread(run_documents, self._run(name))
            self._job, self._graph = found.job, found.graph
        elif kind == OWN_TEXT:
            self._job = None
            self._job = await asyncio.to_thread(job_of_text, self._own_text("job"))  # a long text takes seconds
        else:
            self._job = preset_job(name)
        for field in ("codec", "ratio", "planner", "strategy", "replicas", "micro_batches", "samples"):
            self._values.pop(field, None)
        self._settings.show(setting_fields(self._prices(), samples=self._graph is None))
        for field in ("bandwidth", "latency", "energy_price", "traffic_price"):
            self._values.pop(field, None)

    async def _read_topology(self) -> None:
        kind, _, name = self._values["topology"].partition(":")
        if kind == "run":
            self._topology = (await asyncio.to_thread(run_documents, self._run(name))).topology
        elif kind == "measured":
            sources = self._view.sources
            self._topology = measured_topology(sources.cluster, sources.regions())
            if self._topology is None:
                raise InputError("no worker has joined yet: choose a preset, or join one with farflung join")
        elif kind == OWN_TEXT:
            self._topology = None
            self._topology = await asyncio.to_thread(topology_of_text, self._own_text("topology"))
        else:
            self._topology = Topology.preset(name)
        assert self._topology is not None
        check_size(self._topology)
        self._values = {field: text for field, text in self._values.items() if ":" not in field}
        machines = machine_rows(self._topology, self._prices())
        head = ("machine", "region", "speed", "number", "x speed", "memory, GB", "rent per hour")
        self._machines.show_markup(table_html("Machines of the scenario", head, machines, text_columns=2))
        ends = ("from", "to", "latency, ms", "bandwidth, Mbit/s")
        self._links.show_markup(table_html("Links of the scenario", ends, link_rows(self._topology), text_columns=2))

    def _own_text(self, name: str) -> str:
        """Return the text that the user has entered.

        Raises:
            InputError: there is none, or the user has no right to enter one.
        """
        text = self._values.get(f"{name}_text", "")
        if self._view.user.role is Role.VIEWER or not text.strip():
            raise InputError(f"paste the text of a {name} file")
        return text

    def _prices(self) -> PriceTable:
        """The prices of the broker's folder, for users who see everything."""
        return prices_of(self._view.sources.home if self._view.user.sees_all else None)

    def _run(self, name: str) -> Any:
        run = self._view.sources.run(name) if self._view.sees(name) else None
        if run is None:
            raise InputError("this dashboard has no such run, or the run belongs to somebody else")
        return run.folder

    def _change(self, name: str, value: str) -> None:
        self._take(name, value)
        self._ask()

    def _take(self, name: str, value: str) -> None:
        """Take a field of the browser; a program could send any number of them."""
        if len(self._values) < _MOST_FIELDS or name in self._values:
            self._values[name] = value

    def _ask(self) -> None:
        """Evaluate what the controls say."""
        if self._session is None or self._job is None or self._topology is None:
            return
        try:
            scenario = scenario_of(self._values, self._job, self._topology, self._graph, self._prices())
            self._cost.set_content(cell(cost_note(scenario)))
            self._session.ask(scenario)
        except FarflungError as error:
            self._fail(str(error))

    def _fail(self, text: str) -> None:
        """Say why the controls were not evaluated. A view of earlier controls must not replace this."""
        if self._session is not None:
            self._session.cancel()
        self._shown = self._newest
        self._figures_box("ff-stale")
        self._error.set_content(cell(text))
        self._state.show("not evaluated", "bad")

    def show(self) -> None:
        """Show the newest view, if it is new."""
        view = self._newest
        if view is None or view is self._shown:
            return
        self._shown = view
        self._state.show(*state_of(view))
        self._error.set_content(cell(view.error))
        found = view.evaluation
        if found is None:  # the last figures stay, marked as old
            self._figures_box("ff-stale")
            return
        self._figures_box("")
        fresh = self._last is None or self._last.evaluation is not found
        self._last = view
        self._bottleneck.set_content(bottleneck(found, view.reasons))
        if fresh:
            self._figures.show(headline(found))
            self._map.set_content(map_of(found))
            self._memory.show(machine_figures(found))
            plan = found.plan
            self._plan.set_content(
                cell(
                    f"Planner {plan.planner}, schedule {plan.schedule}, {counted(len(plan.stages), 'stage')}, "
                    f"{counted(len(plan.micro_batch_sizes), 'micro-batch', 'micro-batches')} of up to "
                    f"{counted(max(plan.micro_batch_sizes), 'sample')}."
                )
            )

    def _figures_box(self, tone: str) -> None:
        for box in (self._figures.box, self._map):
            box.classes(add="ff-stale") if tone else box.classes(remove="ff-stale")

    def _save_plan(self) -> None:
        view = self._last
        if view is None or view.evaluation is None:
            ui.notify("There is no plan yet.", type="warning")
            return
        body = view.evaluation.plan_file(self._graph)
        ui.download.content(json.dumps(body, indent=1).encode(), "plan.json", "application/json")

    def _save_topology(self) -> None:
        view = self._last
        if view is None or view.evaluation is None:
            ui.notify("There is no topology yet.", type="warning")
            return
        ui.download.content(view.evaluation.topology.to_toml().encode(), "topology.toml", "application/toml")
