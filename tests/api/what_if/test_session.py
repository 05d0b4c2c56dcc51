"""Sessions with the real planning process: what they publish, what ends early, and what is saved."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from farflung.api.plan_file import read_plan_file
from farflung.api.what_if.planning_client import PlanningClient, PlanTask, Superseded
from farflung.api.what_if.scenario import Choices, MachineChange, Scenario
from farflung.api.what_if.session import View, WhatIfSession
from farflung.api.what_if.sources import job_of_text, preset_job
from farflung.cluster import Topology
from farflung.errors import PlanError
from tests.support.commands.planned_jobs import JOB as TINY
from tests.support.commands.planned_jobs import run

BASE = Topology.preset("local4-two-regions")
TEXT = TINY.replace("layers = 2, width = 8", "layers = 4, width = 64") + '[plan]\nplanner = "equal_number"\n'
JOB = job_of_text(TEXT)


class Watcher:
    """Collects views, and waits for one."""

    def __init__(self) -> None:
        self.views: list[View] = []
        self._changed = threading.Condition()

    def __call__(self, view: View) -> None:
        with self._changed:
            self.views.append(view)
            self._changed.notify_all()

    def until(self, fits: Callable[[View], bool]) -> View:
        def found() -> View | None:
            return next((view for view in self.views if fits(view)), None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() is not None, 100), self.views
        view = found()
        assert view is not None
        return view

    def over(self, number: int) -> View:
        """The last view of scenario ``number``."""
        return self.until(lambda view: view.number == number and (view.state == "failed" or view.reasons is not None))


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[WhatIfSession, Watcher]]:
    watcher = Watcher()
    session = WhatIfSession(watcher)
    yield session, watcher
    session.close()


def test_a_scenario_is_captured_planned_and_explained(
    opened: tuple[WhatIfSession, Watcher], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session, watcher = opened
    number = session.ask(Scenario(job=JOB, topology=BASE))
    last = watcher.over(number)
    states = [view.state for view in watcher.views if view.number == number]
    assert states == ["planning", "capturing", "planning", "ready", "ready"]
    assert last.error == ""
    assert last.planned
    assert last.evaluation is not None
    assert last.reasons is not None
    assert last.reasons.seconds == last.evaluation.step_seconds
    saved, job = tmp_path / "plan.json", tmp_path / "job.toml"
    saved.write_text(json.dumps(last.evaluation.plan_file()))
    job.write_text(TEXT)
    code, out, _ = run(["simulate", saved, "--json"], capsys)
    assert code == 0
    assert json.loads(out)["step_seconds"] == last.evaluation.step_seconds
    planned = run(["plan", job, "--topology", "local4-two-regions", "--json"], capsys)[1]
    body = json.loads(planned)
    assert body["estimate"]["step_seconds"] == last.evaluation.step_seconds, "the command makes the same plan"
    assert body["plan"] == json.loads(saved.read_text())["plan"]


def test_no_view_of_a_canceled_scenario_is_published(opened: tuple[WhatIfSession, Watcher]) -> None:
    session, watcher = opened
    number = session.ask(Scenario(job=JOB, topology=Topology.preset("two-laptops")))
    watcher.until(lambda view: view.number == number)
    session.cancel()
    seen = list(watcher.views)
    watcher.over(session.ask(Scenario(job=JOB, topology=BASE)))
    assert [view for view in watcher.views if view.number == number] == [view for view in seen if view.number == number]
    assert all(view.state != "ready" for view in seen if view.number == number)


def test_a_slider_changes_the_figures_of_the_present_plan_before_a_new_plan_comes(
    opened: tuple[WhatIfSession, Watcher],
) -> None:
    session, watcher = opened
    before = watcher.over(session.ask(Scenario(job=JOB, topology=BASE)))
    number = session.ask(Scenario(job=JOB, topology=BASE, bandwidth=0.125, choices=Choices(codec="int8")))
    last = watcher.over(number)
    first = next(view for view in watcher.views if view.number == number)
    assert not first.planned
    assert first.evaluation is not None
    assert before.evaluation is not None
    assert first.evaluation.step_seconds > before.evaluation.step_seconds
    assert first.evaluation.plan.stages == before.evaluation.plan.stages
    assert last.planned
    assert "capturing" not in [view.state for view in watcher.views if view.number == number], "the model is captured once"


def test_errors_are_published_and_the_session_goes_on(opened: tuple[WhatIfSession, Watcher]) -> None:
    session, watcher = opened
    for scenario, words in (
        (Scenario(job=JOB, topology=BASE, choices=Choices(planner="foo")), "unknown planner 'foo'"),
        (Scenario(job=JOB, topology=BASE, choices=Choices(codec="foo")), "foo"),
        (Scenario(job=JOB, topology=BASE, machines=(MachineChange(name="x"),)), "no machine is called 'x'"),
        (Scenario(job=preset_job("gpt2"), topology=BASE), "memory"),
    ):
        failed = watcher.over(session.ask(scenario))
        assert failed.state == "failed"
        assert words in failed.error
    assert watcher.over(session.ask(Scenario(job=JOB, topology=BASE))).state == "ready"


def test_the_model_of_a_run_has_one_size_of_micro_batches(opened: tuple[WhatIfSession, Watcher]) -> None:
    session, watcher = opened
    graph = watcher.over(session.ask(Scenario(job=JOB, topology=BASE))).graph
    of_run = Scenario(job=replace_model(JOB), topology=BASE, graph=graph)
    found = watcher.over(session.ask(of_run))
    assert found.state == "ready", "a model that nobody could capture here"
    assert found.evaluation is not None
    again = read_plan_file(json.dumps(found.evaluation.plan_file(graph)), "saved")
    assert again.graph == graph
    failed = watcher.over(session.ask(replace(of_run, choices=Choices(samples=7))))
    assert "the model of a run cannot be captured for other sizes of micro-batches" in failed.error


def replace_model(job):  # type: ignore[no-untyped-def]
    return job.model_copy(update={"model": job.model.model_copy(update={"recipe": "/gone/model.py:make"})})


def test_a_newer_scenario_ends_the_work_on_an_older_one() -> None:
    watcher, asked = Watcher(), threading.Event()

    def publish(view: View) -> None:
        watcher(view)
        if view.number == 1 and view.state == "planning" and view.graph is None:
            asked.set()

    session = WhatIfSession(publish)
    try:
        session.ask(Scenario(job=JOB, topology=BASE))
        assert asked.wait(60)
        newest = [session.ask(Scenario(job=JOB, topology=BASE, bandwidth=factor)) for factor in (0.5, 0.25, 2.0)][-1]
        assert watcher.over(newest).state == "ready"
        assert not any(view.planned for view in watcher.views if view.number < newest)
    finally:
        session.close()


def test_a_task_ends_at_its_deadline_and_with_a_newer_one() -> None:
    client = PlanningClient(seconds=0.0)
    task = PlanTask(job=JOB, topology=BASE, graph=None, start=None, newer=lambda: False, phase=lambda name: None)
    try:
        with pytest.raises(Superseded):
            client.plan(replace(task, newer=lambda: True))
        with pytest.raises(PlanError, match="the planner equal_number took more than 0 s: try a smaller model, fewer machines"):
            client.plan(task)
    finally:
        client.close()


def test_a_process_that_dies_is_an_error_and_then_replaced() -> None:
    client = PlanningClient()
    phases: list[str] = []

    def phase(name: str) -> None:
        phases.append(name)
        process = client._process
        if len(phases) == 1 and process is not None:
            process.kill()

    task = PlanTask(job=JOB, topology=BASE, graph=None, start=None, newer=lambda: False, phase=phase)
    try:
        with pytest.raises(PlanError, match="the planning process has died, perhaps because the model needs more memory"):
            client.plan(task)
        assert client.plan(task).plan.planner == "equal_number"
    finally:
        client.close()
