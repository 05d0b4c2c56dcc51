"""A person evaluates a cluster in Chromium, saves the plan, and downloads the ledger of runs."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from farflung.cluster import Topology
from tests.support.commands.command_processes import Program
from tests.support.commands.planned_jobs import run
from tests.support.records.written_runs import WrittenAttempt, write_run
from tests.support.servers.browser import Visitor, axe_script, serious_problems, visiting
from tests.support.steps.small_runs import small_job, small_plan

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

TWO = Topology.preset("local4-two-regions")
STEP = "document.querySelector('.ff-figures dd').innerText"


class Dashboard:
    """``farflung web`` with two runs, one of which lost a machine."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        first = WrittenAttempt(plan=small_plan(("east-0", "west-0")), topology=TWO, first=0, steps=30)
        rest = TWO.select(["east-0", "east-1", "west-1"])
        second = WrittenAttempt(plan=small_plan(("east-0", "west-1")), topology=rest, first=27, steps=10, pause=12.0)
        folders = [place / "run-1", place / "run-2"]
        write_run(folders[0], small_job(name="<i>first</i>"), [first])
        write_run(folders[1], small_job(), [first, second])
        program = Program(place, "web", "web", *map(str, folders), "--listen", "127.0.0.1:0")
        stack.callback(program.process.wait, 30)
        stack.callback(program.process.kill)
        self.link = program.until(r"http://\S+/sign-in#\S+")[0]
        self.address = urlsplit(self.link).netloc

    def url(self, path: str) -> str:
        return f"http://{self.address}{path}"


@pytest.fixture(scope="module")
def dashboard(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with ExitStack() as stack:
        yield Dashboard(tmp_path_factory.mktemp("served"), stack)


@pytest.fixture(scope="module")
def state(dashboard: Dashboard, browser: Any) -> Any:
    with visiting(browser) as visitor:
        visitor.page.goto(dashboard.link)
        visitor.sees("All runs")
        return visitor.page.context.storage_state()


def opened(visitor: Visitor, dashboard: Dashboard, path: str) -> None:
    """Open a page, and wait until it is filled."""
    visitor.page.goto(dashboard.url(path))
    if path == "/what-if":
        planned(visitor)
    else:
        visitor.page.locator(".ff-table").first.wait_for()


def planned(visitor: Visitor) -> None:
    """Wait for a new plan: the badge "no new plan" is another one. The capture of a model takes seconds."""
    visitor.page.locator(".ff-title .ff-badge", has_text=re.compile("^new plan$")).wait_for(timeout=300_000)


def test_a_slider_changes_the_step_time_and_the_plan_is_saved(
    dashboard: Dashboard, state: Any, browser: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with visiting(browser, state=state) as visitor:
        page = visitor.page
        opened(visitor, dashboard, "/what-if")
        page.get_by_label("Job", exact=True).select_option("model:gpt2")
        page.get_by_label("Topology", exact=True).select_option("preset:two-laptops")
        visitor.sees("laptop-slow")
        planned(visitor)
        before = page.evaluate(STEP)
        page.get_by_label("Bandwidth between regions").focus()
        for _ in range(8):
            page.keyboard.press("ArrowLeft")
        page.wait_for_function(f"{STEP} !== {json.dumps(before)}")
        assert page.get_by_text("× 0.25").count() == 1
        visitor.sees("Cost: energy at 0.25 USD per kWh, no rent, free traffic.")
        page.get_by_label("Energy, price per kWh").fill("0")
        page.get_by_label("Rent per hour of laptop-fast").fill("2")
        visitor.sees("Cost: energy at 0 USD per kWh, the rents below, free traffic.")
        page.locator(".ff-figures", has_text="2.00 USD").wait_for()
        page.get_by_label("Compression ratio").fill("0")
        visitor.sees("codec.ratio")
        page.get_by_label("Compression ratio").fill("")
        planned(visitor)
        with page.expect_download() as download:
            page.get_by_role("button", name="Save plan").click()
        saved = tmp_path / "plan.json"
        download.value.save_as(saved)
        shown = page.evaluate(STEP)
        assert visitor.problems == []
        assert visitor.hosts == {dashboard.address}
    code, out, _ = run(["simulate", saved, "--json"], capsys)
    assert code == 0
    seconds = json.loads(out)["step_seconds"]
    assert json.loads(saved.read_text())["estimate"]["step_seconds"] == seconds
    minutes, _, rest = shown.partition(" min ")
    assert abs(60 * int(minutes) + int(rest.removesuffix(" s")) - seconds) <= 1


def test_a_topology_is_edited_in_the_page(dashboard: Dashboard, state: Any, browser: Any, tmp_path: Path) -> None:
    with visiting(browser, state=state) as visitor:
        page = visitor.page
        opened(visitor, dashboard, "/what-if")
        page.get_by_label("Job", exact=True).select_option("model:gpt-small")
        page.get_by_label("Topology", exact=True).select_option("preset:two-laptops")
        visitor.sees("laptop-slow")
        page.get_by_label("Topology", exact=True).select_option("text")
        editor = page.get_by_label("Topology file (TOML)")
        text = editor.input_value()
        assert text.startswith("name = "), "the present topology"
        editor.fill(text.replace("laptop-slow", "<b>tower</b>"))
        visitor.sees("<b>tower</b>")
        assert page.locator("#main td b").count() == 0, "names are text"
        planned(visitor)
        editor.fill(text.replace("laptop-slow", "tower"))
        editor.fill("[[device]]")  # while the page plans: no view of the other text may hide the error
        visitor.sees("the topology: ")
        page.locator(".ff-title .ff-badge", has_text="not evaluated").wait_for()
        editor.fill(text)
        planned(visitor)
        assert page.get_by_text("the topology: ").count() == 0
        for name in ("laptop-fast", "laptop-slow"):
            page.get_by_label(f"Memory in GB of {name}").fill("0.001")
        page.locator(".ff-title .ff-badge", has_text="no new plan").wait_for()  # the model does not fit
        page.get_by_label("Memory in GB of laptop-fast").fill("12")
        planned(visitor)
        with page.expect_download() as download:
            page.get_by_role("button", name="Save topology").click()
        download.value.save_as(tmp_path / "topology.toml")
        assert visitor.problems == []
    assert Topology.from_toml(tmp_path / "topology.toml").devices[0].memory == 12e9


def test_the_ledger_is_downloaded(dashboard: Dashboard, state: Any, browser: Any, tmp_path: Path) -> None:
    with visiting(browser, state=state) as visitor:
        page = visitor.page
        first = page.request.get(dashboard.url("/ledger")).text()
        assert "Loading ..." in first
        assert "No run yet" not in first, "nothing is known before the runs are read"
        opened(visitor, dashboard, "/ledger")
        visitor.sees("<i>first</i>")
        assert page.locator("#main i").count() == 0, "names are text"
        with page.expect_download() as download:
            page.get_by_role("button", name="Download CSV").click()
        assert download.value.suggested_filename == "ledger-all.csv"
        download.value.save_as(tmp_path / "ledger.csv")
        page.get_by_label("Show").select_option("run-1")
        page.wait_for_function("document.querySelector('.ff-figures').innerText.includes('240')")
        page.locator("summary", has_text="Table").first.click()
        visitor.page.get_by_role("region", name="Shares of the machines, table").wait_for()
        assert visitor.problems == []
    with (tmp_path / "ledger.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["machine"], row["samples"], row["repeated_samples"]) for row in rows] == [
        ("run-1", "east-0", "240", "0"),
        ("run-1", "west-0", "240", "0"),
        ("run-2", "east-0", "296", "24"),
        ("run-2", "west-0", "216", "24"),
        ("run-2", "west-1", "80", "0"),
    ]


@pytest.mark.parametrize(
    ("dark", "narrow"),
    [
        (False, False),
        pytest.param(True, False, marks=pytest.mark.slow),
        pytest.param(False, True, marks=pytest.mark.slow),
        (True, True),
    ],
)
@pytest.mark.parametrize("path", ["/what-if", "/ledger"])
def test_pages_are_clean(dashboard: Dashboard, state: Any, browser: Any, path: str, dark: bool, narrow: bool) -> None:
    with visiting(browser, dark=dark, narrow=narrow, state=state) as visitor:
        opened(visitor, dashboard, path)
        if path == "/what-if":
            grounds = "[...document.querySelectorAll('.ff-svg rect.ground')].map(one => getComputedStyle(one).fill)"
            first, *labels = visitor.page.evaluate(grounds)
            assert first == "none", "the card is the ground of the map"
            assert labels, "labels of links have a ground, so that lines do not cross their words"
            assert "none" not in labels
        assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "wider than the window"
        assert visitor.page.evaluate("document.body.classList.contains('body--dark')") is dark
        assert visitor.problems == []
        assert visitor.hosts == {dashboard.address}
        assert serious_problems(visitor.page, axe_script()) == []
