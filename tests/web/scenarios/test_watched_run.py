"""A person watches a real run of four workers in Chromium, sees one die, drains another, and stops the run."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from farflung.security import Ticket
from tests.support.commands.command_processes import Program
from tests.support.runs.loopback import text_folder
from tests.support.servers.browser import Visitor, axe_script, serious_problems, visiting

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

JOB = """
name = "watched <b>run</b>"
steps = 100000
micro_batch_sizes = [2, 2]
[model]
recipe = "gpt"
args = { vocab = 256, sequence = 16, layers = 3, width = 16, heads = 2 }
[data]
kind = "text"
path = "corpus"
tokenizer = "bytes"
sequence = 16
eval_fraction = 0.1
[optimizer]
name = "sgd"
lr = 1e-3
[checkpoint]
every = 20
[evaluate]
every = 20
batches = 2
[plan]
planner = "equal_compute"
[codec]
name = "int8"
"""


class Cluster:
    """A broker with its dashboard, four workers, and a run. Two workers stay to the end: their links limit its speed."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self._place, self._stack = place, stack
        text_folder(place)
        (place / "job.toml").write_text(JOB)
        self.home = str(place / "broker")
        self.broker = self.start("broker", "broker", "--listen", "127.0.0.1:0", "--home", self.home, "--web", "127.0.0.1:0")
        self.link = self.broker.until(r"http://\S+/sign-in#\S+")[0]
        self.ticket = self.broker.until(r"--ticket (\S+)")[1]
        join = self.broker.until(r"farflung join (\S+)")[1]
        # without the limit, the run would take the processors that the browser needs
        limits = ("--listen", "127.0.0.1:0", "--isolation", "off", "--bandwidth", "500 kbit/s")
        self.workers = {name: self.start(name, "join", join, "--name", name, *limits) for name in ("ada", "bob", "dan", "eve")}
        for worker in self.workers.values():
            worker.until("joined the broker")
        submitted = self.start("submit", "submit", "job.toml", "--home", self.home)
        self.run = submitted.until(r"run-[0-9a-f]+")[0]
        submitted.until("training starts")

    def start(self, name: str, *arguments: str) -> Program:
        program = Program(self._place, name, *arguments)
        self._stack.callback(program.process.wait, 30)
        self._stack.callback(program.process.kill)
        return program

    def new_link(self) -> str:
        number = len(list(self._place.glob("link-*.log")))
        asked = self.start(f"link-{number}", "web", "--home", self.home, "--json")
        assert asked.ends() == 0, asked.text
        found = json.loads(asked.text)
        assert found["serving"] is False, "the broker does"
        return str(found["link"])


@pytest.fixture(scope="module")
def cluster(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("watched"), stack)


@pytest.fixture(scope="module")
def state(cluster: Cluster, browser: Any) -> Any:
    """The cookies of somebody who has opened the link of the broker."""
    with visiting(browser) as visitor:
        visitor.page.goto(cluster.link)
        visitor.sees("ada")
        assert "#" not in visitor.page.url
        (cookie,) = visitor.page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        found = visitor.page.context.storage_state()
    with visiting(browser) as other:
        other.page.goto(cluster.link)
        other.sees("this link was used already")
    return found


def base(cluster: Cluster) -> str:
    return f"http://{urlsplit(cluster.link).netloc}"


def assert_clean(visitor: Visitor, cluster: Cluster) -> None:
    assert visitor.problems == []
    assert visitor.hosts == {urlsplit(cluster.link).netloc}


@pytest.mark.parametrize(
    ("dark", "narrow"),
    [
        (False, False),
        pytest.param(True, False, marks=pytest.mark.slow),
        pytest.param(False, True, marks=pytest.mark.slow),
        (True, True),
    ],
)
def test_every_page_is_clean_and_accessible(cluster: Cluster, state: Any, browser: Any, dark: bool, narrow: bool) -> None:
    script = axe_script()
    for path in ("/cluster", "/runs", f"/run/{cluster.run}", f"/compare/{cluster.run}"):
        with visiting(browser, dark=dark, narrow=narrow, state=state) as visitor:
            page = visitor.page
            page.goto(base(cluster) + path)
            page.locator("#main h1").wait_for()
            page.locator(".ff-chart canvas, .ff-table").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than the window"
            assert page.evaluate("document.body.classList.contains('body--dark')") is dark
            marked = page.locator(".ff-nav [aria-current=page]").inner_text()
            assert marked == ("Cluster" if path == "/cluster" else "Runs")
            assert_clean(visitor, cluster)
            assert serious_problems(page, script) == [], path


def test_the_error_of_codecs_is_drawn_although_it_is_measured_now_and_then(cluster: Cluster, state: Any, browser: Any) -> None:
    with visiting(browser, state=state) as visitor:
        visitor.page.goto(f"{base(cluster)}/run/{cluster.run}")
        visitor.page.get_by_role("img", name=re.compile(r"^Codec error, codec error \d")).wait_for()
        cards = visitor.page.locator(".ff-row > .ff-card:visible")
        boxes = [cards.nth(i).bounding_box() for i in range(cards.count())]
        ends = {round(box["x"] + box["width"]) for box in boxes}
        right = visitor.page.locator(".ff-row").bounding_box()
        assert max(ends) == round(right["x"] + right["width"]), "no hole at the end of the row"
        assert len({round(box["y"]) for box in boxes}) == 1 or len(ends) < len(boxes)
        assert_clean(visitor, cluster)


#: What the legend of the chart ``figure`` names, before and after its last line has lost its points; and the lines' colors.
LEGEND = """async (figure) => {
  const { echarts } = await import("nicegui-echart");
  const chart = getElement(Number(figure.id.slice(1)));
  const drawn = () => echarts.getInstanceByDom(figure.querySelector(".ff-chart > div")).getOption();
  const before = drawn().legend[0].data;
  chart.set(chart.points.map((points, i) => (i === chart.points.length - 1 ? [] : points)));
  return [before, drawn().legend[0].data, drawn().series.map((one) => one.itemStyle.color)];
}"""


def test_a_legend_names_the_lines_that_have_points_and_their_colors_differ(cluster: Cluster, state: Any, browser: Any) -> None:
    with visiting(browser, state=state) as visitor:
        visitor.page.goto(f"{base(cluster)}/run/{cluster.run}")
        visitor.page.get_by_role("img", name=re.compile(r"^Loss, training .*, evaluation \d")).wait_for()
        figure = visitor.page.locator("figure", has=visitor.page.get_by_role("img", name=re.compile("^Loss, training")))
        before, after, colors = figure.evaluate(LEGEND)
        assert before == ["training", "mean of 10 steps", "evaluation"]
        assert after == ["training", "mean of 10 steps"]
        assert len(set(colors)) == 3
        assert_clean(visitor, cluster)


def test_names_from_outside_are_text(cluster: Cluster, state: Any, browser: Any) -> None:
    with visiting(browser, state=state) as visitor:
        visitor.page.goto(f"{base(cluster)}/run/{cluster.run}")
        visitor.sees("watched <b>run</b>")
        visitor.page.goto(f"{base(cluster)}/run/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
        visitor.sees("<img src=x onerror=alert(1)>")
        assert visitor.page.locator("#main img").count() == 0


def test_a_viewer_has_no_buttons(cluster: Cluster, state: Any, browser: Any) -> None:
    with visiting(browser, state=state) as owner:
        owner.page.goto(f"{base(cluster)}/cluster")
        owner.page.get_by_role("button", name="Share read-only link").click()
        link = owner.page.get_by_text(re.compile("/sign-in#")).inner_text()
    with visiting(browser) as viewer:
        viewer.page.goto(link)
        viewer.sees("ada")
        assert viewer.page.get_by_role("button", name="Drain").count() == 0
        viewer.page.goto(f"{base(cluster)}/run/{cluster.run}")
        viewer.page.locator(".ff-chart canvas").first.wait_for()
        assert viewer.page.get_by_role("button", name="Stop").count() == 0
        assert viewer.page.get_by_role("link", name=re.compile("Export")).count() == 0
        assert viewer.page.request.get(f"{base(cluster)}/export/{cluster.run}/20").status == 404
        assert_clean(viewer, cluster)


def test_a_submit_ticket_sees_only_its_own_runs(cluster: Cluster, browser: Any, state: Any) -> None:
    del state  # the owner's link is used up before
    with visiting(browser) as visitor:
        visitor.page.goto(f"{base(cluster)}/sign-in")
        visitor.page.get_by_label("Link or ticket").fill(cluster.ticket)
        visitor.page.keyboard.press("Enter")
        visitor.sees("ada")
        visitor.page.goto(f"{base(cluster)}/run/{cluster.run}")
        visitor.sees("belongs to somebody else")


def test_a_ticket_of_another_broker_signs_nobody_in(cluster: Cluster, browser: Any, state: Any) -> None:
    """That broker could claim that every run belongs to its ticket."""
    del state
    foreign = replace(Ticket.parse(cluster.ticket), fingerprint=bytes(32))
    with visiting(browser) as visitor:
        visitor.page.goto(f"{base(cluster)}/sign-in")
        visitor.page.get_by_label("Link or ticket").fill(str(foreign))
        visitor.page.keyboard.press("Enter")
        visitor.sees("this ticket is of another broker: paste one that this broker has issued")


def test_the_dashboard_is_reached_from_another_machine_with_a_ticket(cluster: Cluster, browser: Any, state: Any) -> None:
    del state
    owner = cluster.start("owner", "ticket", "issue", "--scope", "owner", "--home", cluster.home).until(r"farflung1-\S+")[0]
    far = cluster.start("far", "web", "--ticket", owner, "--listen", "127.0.0.1:0")
    link = far.until(r"http://\S+/sign-in#\S+")[0]
    with visiting(browser) as visitor:
        visitor.page.goto(link)
        visitor.sees("ada")
        visitor.page.get_by_role("button", name="Pause eve").wait_for()
        visitor.page.goto(f"http://{urlsplit(link).netloc}/run/{cluster.run}")
        before = shown_step(visitor.page)
        visitor.page.wait_for_function(f"parseInt(document.querySelector('.ff-figures dd').textContent) > {before}")
        assert visitor.problems == []


def test_the_run_is_watched_and_a_worker_dies(cluster: Cluster, browser: Any, state: Any) -> None:
    with visiting(browser, state=state) as visitor, visiting_also(visitor) as machines:
        page = visitor.page
        page.goto(f"{base(cluster)}/run/{cluster.run}")
        before = shown_step(page)
        page.wait_for_function(f"parseInt(document.querySelector('.ff-figures dd').textContent) > {before}")
        machines.page.goto(f"{base(cluster)}/cluster")
        machines.page.get_by_role("button", name="Pause eve").wait_for()
        row = machines.page.locator("tr", has_text="watched <b>run</b>")
        assert row.get_by_role("link").inner_text() == cluster.run
        cluster.workers["eve"].kill(signal.SIGKILL)
        machines.page.locator("tr", has_text="eve").get_by_text("gone").wait_for()
        visitor.sees("resumed after")
        after = shown_step(page)
        page.wait_for_function(f"parseInt(document.querySelector('.ff-figures dd').textContent) > {after}")
        with page.expect_download() as download:
            page.get_by_role("link", name=re.compile("Export step")).first.click()
        assert download.value.suggested_filename.startswith(cluster.run)
        assert_clean(visitor, cluster)
        assert_clean(machines, cluster)


def test_a_worker_is_paused_resumed_and_drained_and_the_run_is_stopped(cluster: Cluster, browser: Any, state: Any) -> None:
    with visiting(browser, state=state) as visitor, visiting_also(visitor) as machines:
        page, dan = visitor.page, machines.page.locator("tr", has_text="dan").filter(has=machines.page.locator(".ff-badge"))
        page.goto(f"{base(cluster)}/run/{cluster.run}")
        machines.page.goto(f"{base(cluster)}/cluster")
        act_on(machines.page, "Pause", "dan")
        dan.get_by_text("paused", exact=True).wait_for()  # its part of the run has moved to others
        before = shown_step(page)
        page.wait_for_function(f"parseInt(document.querySelector('.ff-figures dd').textContent) > {before}")
        assert machines.page.get_by_role("button", name="Pause dan").count() == 0
        act_on(machines.page, "Resume", "dan")
        machines.page.get_by_role("button", name="Pause dan").wait_for()
        act_on(machines.page, "Drain", "dan")
        machines.page.get_by_role("button", name="Drain dan").wait_for(state="detached")
        page.bring_to_front()
        page.get_by_role("button", name="Stop").press("Enter")  # by keyboard alone
        page.get_by_role("alertdialog").get_by_role("button", name="Stop").click()
        page.locator(".ff-title .ff-badge", has_text="stopped").wait_for()
        dan.get_by_text("gone", exact=True).wait_for()  # at the latest now: the run may use it again
        assert cluster.workers["dan"].ends() == 0
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("alertdialog").get_by_role("button", name="Continue").click()
        page.get_by_text(re.compile(rf"run-[0-9a-f]+ continues {cluster.run}")).wait_for()
        assert_clean(visitor, cluster)
        assert_clean(machines, cluster)


def act_on(page: Any, action: str, worker: str) -> None:
    """Press a button beside a worker and confirm it."""
    page.get_by_role("button", name=f"{action} {worker}").click()
    page.get_by_role("alertdialog").get_by_role("button", name=action).click()
    page.get_by_text(f"{worker}: {action.lower()} requested").wait_for()


def visiting_also(visitor: Visitor) -> Any:
    """Another window of the same browser."""

    class Window:
        def __enter__(self) -> Visitor:
            self.page = visitor.page.context.new_page()
            return Visitor(self.page)

        def __exit__(self, *_: object) -> None:
            self.page.close()

    return Window()


def shown_step(page: Any) -> int:
    page.wait_for_function("parseInt(document.querySelector('.ff-figures dd')?.textContent) > 0")
    return int(page.evaluate("parseInt(document.querySelector('.ff-figures dd').textContent)"))


def test_another_link_is_had_from_the_command_line(cluster: Cluster, browser: Any, state: Any) -> None:
    del state
    with visiting(browser) as visitor:
        visitor.page.goto(cluster.new_link())
        visitor.sees("ada")


def test_a_finished_run_is_shown_without_a_broker(cluster: Cluster, browser: Any) -> None:
    folder = str(Path(cluster.home) / "runs" / cluster.run)
    shown = cluster.start("files", "web", folder, "--listen", "127.0.0.1:0")
    with visiting(browser) as visitor:
        visitor.page.goto(shown.until(r"http://\S+/sign-in#\S+")[0])
        row = visitor.page.locator("tr", has_text=cluster.run)
        assert re.search(r"\d\.\d{4}$", row.inner_text()), "the last loss"
        row.get_by_role("link", name=cluster.run).click()
        visitor.page.locator(".ff-chart canvas").first.wait_for()
        assert visitor.page.locator("h1").inner_text() == "watched <b>run</b>"
        assert visitor.page.get_by_role("button", name="Stop").count() == 0
        assert visitor.problems == []
    shown.kill(signal.SIGINT)
    assert shown.ends() == 0, shown.text
