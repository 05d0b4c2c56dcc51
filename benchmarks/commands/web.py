"""``web``: what the dashboard costs with 64 machines and a run of 10,000 steps, watched in Chromium.

First paint: from opening the run's page, with an empty cache, until its loss chart shows the run. Update interval: between two
changes of the step that the page shows, while a step is added ten times a second. CPU: of the broker and of the dashboard while
ten browsers watch. The machines send heartbeats only, and the run is a folder that
grows; the broker, its dashboard and the browsers are real.

Step time: a training run of three workers on this machine, in turns with and without a browser that watches it. It needs a core
for each process, or the processes wait for each other; with fewer the target is not judged.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.commands.idle_members import member_name
from benchmarks.commands.startup import cpu_seconds
from benchmarks.commands.synthetic_run import step_record, write_run
from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.programs import broker, child_of, start
from farflung.child_processes import end_all
from farflung.errors import InputError
from farflung.telemetry import RunFolder, StepRecord

__all__ = ["Web", "WebSettings"]

FIRST_PAINT, INTERVAL, BROKER_CPU, SLOWDOWN = 1.0, 1.0, 0.05, 0.005
_RUN = "run-of-64"
_READY = "document.querySelector('.ff-figures dd') && document.querySelectorAll('.ff-chart canvas').length > 2"
_SHOWN = "() => document.querySelector('.ff-figures dd').textContent"
_JOB = """
name = "watched"
steps = 1000000
micro_batch_sizes = [4, 4]
[model]
recipe = "gpt"
args = { vocab = 256, sequence = 64, layers = 3, width = 64, heads = 4 }
[data]
kind = "text"
path = "{stdlib}"
glob = "a*.py"
tokenizer = "bytes"
sequence = 64
[plan]
planner = "equal_compute"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings(Settings):
    """``seconds``: of each measurement of CPU. ``turns``: with and without a browser, of ``turn_seconds`` each."""

    machines: int = 64
    steps: int = 10_000
    browsers: int = 10
    seconds: float = 30.0
    paints: int = 5
    turns: int = 6
    turn_seconds: float = 20.0


class Web:
    """The dashboard's cost."""

    name = "web"
    summary = "dashboard with 64 machines and 10,000 steps: first paint, update interval, CPU, slowdown of a step"

    def settings(self, quick: bool) -> WebSettings:
        """Quick: a small cluster and one turn."""
        if quick:
            return WebSettings(quick=True, machines=4, steps=200, browsers=2, seconds=3.0, paints=1, turns=1, turn_seconds=4.0)
        return WebSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, WebSettings)
        from playwright.sync_api import sync_playwright

        program = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
        if program is None:
            raise InputError("the benchmark web needs Chromium: install it, e.g. apt-get install chromium")
        with (
            tempfile.TemporaryDirectory() as folder,
            sync_playwright() as driver,
            driver.chromium.launch(executable_path=program, args=["--no-sandbox"]) as browser,
        ):
            figures = _watching(Path(folder) / "watched", browser, settings, say)
            figures |= _slowdown(Path(folder) / "trained", browser, settings, say)
        return report_of(figures, settings)


def report_of(figures: Mapping[str, Any], settings: WebSettings) -> Report:
    """The figures against their targets. Quick settings are not judged."""
    judged, cores = not settings.quick, os.cpu_count() or 1
    enough = cores >= 8
    rows = (
        ("first paint", f"{FIRST_PAINT:g} s", f"{figures['first_paint']:.2f} s", figures["first_paint"] <= FIRST_PAINT),
        ("update interval", f"{INTERVAL:g} s", f"{figures['update_interval']:.2f} s", figures["update_interval"] <= INTERVAL),
        (
            "CPU of the broker, heartbeats of the machines included",
            f"{BROKER_CPU:.0%} of a core",
            f"{figures['broker_cpu']:.1%}",
            figures["broker_cpu"] <= BROKER_CPU,
        ),
        ("slowdown of a step", f"{SLOWDOWN:.1%}", f"{figures['slowdown']:.2%}", figures["slowdown"] <= SLOWDOWN),
    )
    few = f"{cores} cores for the processes of broker, dashboard, browser and three workers"
    checks = [
        Check(
            name=name,
            target=f"{target} at most",
            measured=measured,
            passed=passed if judged and (enough or name != "slowdown of a step") else None,
            note=few if not enough and name == "slowdown of a step" else "",
        )
        for name, target, measured, passed in rows
    ]
    extra = [("CPU of the dashboard", "–", f"{figures['dashboard_cpu']:.1%}", "")]
    return Report(
        figures=figures, columns=("figure", "target", "measured"), rows=[row[:3] for row in (*rows, *extra)], checks=checks
    )


# -- 64 machines and 10,000 steps -----------------------------------------------------------------------------------------


def _watching(home: Path, browser: Any, settings: WebSettings, say: Say) -> dict[str, Any]:
    say(f"writing a run of {settings.steps} steps on {settings.machines} machines")
    folder = write_run(home / "runs" / _RUN, settings.machines, settings.steps)
    with broker(home) as started, ExitStack() as stack:
        ticket = started.until(r"farflung join (\S+)")[1]
        members = start(
            [sys.executable, "-m", "benchmarks.commands.idle_members", ticket, str(settings.machines)], home / "idle.log"
        )
        stack.callback(end_all, [members.process], 5.0)
        link = started.until(r"http://\S+/sign-in#\S+")[0]
        dashboard = child_of(started.process.pid, "web")[0]
        context = browser.new_context()
        page = context.new_page()
        page.goto(link)
        page.get_by_text(member_name(settings.machines - 1), exact=True).first.wait_for(timeout=120_000)
        base = link.partition("/sign-in")[0]
        cookies = context.storage_state()
        page.goto(f"{base}/run/{_RUN}")  # the dashboard reads the run once, whoever asks
        page.wait_for_function(_READY, timeout=120_000)
        context.close()
        say("first paint")
        paints = [_paint(browser, cookies, f"{base}/run/{_RUN}") for _ in range(settings.paints)]
        say(f"CPU without browsers, {settings.seconds:g} s")
        idle = _cpu((started.process.pid, dashboard), settings.seconds)
        with _growing(folder, settings):
            pages = []
            for number in range(settings.browsers):
                watching = browser.new_context(storage_state=cookies)
                stack.callback(watching.close)
                pages.append(watching.new_page())
                pages[-1].goto(f"{base}/{'cluster' if number % 2 else f'run/{_RUN}'}")
            pages[0].wait_for_function(_READY, timeout=120_000)
            say(f"CPU while {settings.browsers} browsers watch, {settings.seconds:g} s")
            watched = _cpu((started.process.pid, dashboard), settings.seconds)
            intervals = _intervals(pages[0], settings.seconds / 2)
    return {
        "first_paint": statistics.median(paints),
        "first_paints": paints,
        "update_interval": statistics.median(intervals) if intervals else float("inf"),
        "broker_cpu": watched[0],
        "broker_cpu_idle": idle[0],
        "dashboard_cpu": watched[1],
        "dashboard_cpu_idle": idle[1],
    }


@contextmanager
def _growing(folder: Path, settings: WebSettings) -> Iterator[None]:
    """The run makes ten steps a second."""
    over = threading.Event()

    def grow() -> None:
        number = settings.steps
        while not over.wait(0.1):
            RunFolder(folder).append(step_record(number, settings.machines))
            number += 1

    thread = threading.Thread(target=grow, name="grow")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _paint(browser: Any, cookies: Any, url: str) -> float:
    context = browser.new_context(storage_state=cookies)
    page = context.new_page()
    begun = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.wait_for_function(_READY, timeout=120_000)
    seconds = time.perf_counter() - begun
    context.close()
    return seconds


def _intervals(page: Any, seconds: float) -> list[float]:
    """Seconds between changes of the step that the page shows."""
    script = f"""async () => {{
      const times = [], shown = {_SHOWN}; let last = shown();
      const end = performance.now() + {1000 * seconds};
      while (performance.now() < end) {{
        await new Promise((resolve) => setTimeout(resolve, 20));
        if (shown() !== last) {{ last = shown(); times.push(performance.now() / 1000); }}
      }}
      return times;
    }}"""
    times = page.evaluate(script)
    return [after - before for before, after in pairwise(times)]


def _cpu(pids: Sequence[int], seconds: float) -> list[float]:
    """Cores that each process uses."""
    before, begun = [cpu_seconds(pid) for pid in pids], time.perf_counter()
    time.sleep(seconds)
    wall = time.perf_counter() - begun
    return [(cpu_seconds(pid) - first) / wall for pid, first in zip(pids, before, strict=True)]


# -- a real run -----------------------------------------------------------------------------------------------------------


def _slowdown(home: Path, browser: Any, settings: WebSettings, say: Say) -> dict[str, Any]:
    home.mkdir()
    (home / "job.toml").write_text(_JOB, encoding="utf-8")
    with broker(home) as started, ExitStack() as stack:
        join = started.until(r"farflung join (\S+)")[1]
        for number in range(3):
            command = ["join", join, "--name", f"worker-{number}", "--listen", "127.0.0.1:0"]
            worker = start([sys.executable, "-u", "-m", "farflung", *command], home / f"worker-{number}.log")
            stack.callback(end_all, [worker.process], 10.0)
            worker.until("joined the broker")
        submit = ["submit", str(home / "job.toml"), "--home", str(home)]
        submitted = start([sys.executable, "-u", "-m", "farflung", *submit], home / "submit.log")
        stack.callback(end_all, [submitted.process], 5.0)
        run = submitted.until(r"run-[0-9a-f]+")[0]
        submitted.until("training starts")
        link = started.until(r"http://\S+/sign-in#\S+")[0]
        context = browser.new_context()
        page = context.new_page()
        page.goto(link)
        page.wait_for_url("**/cluster")
        files, base = RunFolder(home / "runs" / run), link.partition("/sign-in")[0]
        times: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(2 * settings.turns):
            watched = bool(turn % 2)
            page.goto(f"{base}/run/{run}" if watched else "about:blank")
            say(f"turn {turn + 1} of {2 * settings.turns}: {'watched' if watched else 'not watched'}")
            time.sleep(settings.turn_seconds / 4)  # the page is drawn, and the plan simulated
            first = sum(1 for _ in files.records())
            time.sleep(settings.turn_seconds)
            steps = [record for record in list(files.records())[first:] if isinstance(record, StepRecord)]
            times[watched].append(statistics.median(record.seconds for record in steps))
        context.close()
    with_page, without = (statistics.median(times[watched]) for watched in (True, False))
    return {"slowdown": with_page / without - 1, "step_seconds": {"watched": times[True], "not watched": times[False]}}
