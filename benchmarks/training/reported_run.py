"""One training run with dashboard, trackers and scrapes that work in every other block of steps and are stopped in the others.

SIGSTOP stops the processes of the dashboard and of the trackers; SIGCONT lets them continue. In a block in which they work, they
also read what the block before has written, so the figure counts their work twice rather than not at all.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness.alternation import alternation, order_of
from benchmarks.harness.base import Say
from benchmarks.harness.programs import broker, child_of, start
from farflung.child_processes import end_all
from farflung.telemetry import RunFolder
from farflung.telemetry.log_file import read_more
from farflung.telemetry.records import StepRecord, read_record

__all__ = ["reported_run"]

_JOB = """
name = "reported"
steps = 1000000
micro_batch_sizes = [4, 4]
[model]
recipe = "gpt"
args = {{ vocab = 256, sequence = 128, layers = 4, width = {width}, heads = 4 }}
[data]
kind = "text"
path = "{{stdlib}}"
glob = "a*.py"
tokenizer = "bytes"
sequence = 128
[plan]
planner = "equal_compute"
[report]
to = ["csv", "tensorboard"]
"""
_WORKERS, _TRACKERS = 2, 2
#: Seconds between two scrapes: often, so that each block has some.
_SCRAPE_SECONDS = 1.0


def reported_run(home: Path, say: Say, *, pairs: int, block: int, width: int, seed: int) -> dict[str, Any]:
    """Train, and return the change of the step time in ``pairs`` of blocks of ``block`` steps."""
    home.mkdir()
    (home / "job.toml").write_text(_JOB.format(width=width), encoding="utf-8")
    with broker(home, "--metrics", "127.0.0.1:0") as served, ExitStack() as stack:
        ticket = served.until(r"farflung join (\S+)")[1]
        page = served.until(r"http://\S+/metrics")[0]
        for number in range(_WORKERS):
            command = ["join", ticket, "--name", f"worker-{number}", "--listen", "127.0.0.1:0"]
            worker = start([sys.executable, "-u", "-m", "farflung", *command], home / f"worker-{number}.log")
            stack.callback(end_all, [worker.process], 10.0)
            worker.until("joined the broker")
        submit = ["submit", str(home / "job.toml"), "--home", str(home)]
        submitted = start([sys.executable, "-u", "-m", "farflung", *submit], home / "submit.log")
        stack.callback(end_all, [submitted.process], 5.0)
        run = submitted.until(r"run-[0-9a-f]+")[0]
        submitted.until("training starts")
        steps = _Steps(RunFolder(home / "runs" / run).metrics)
        reporting: list[int] = []
        while len(reporting) < 1 + _TRACKERS:
            steps.take(block)  # the first ones are slow, and the trackers start
            reporting = [one for word in ("web", "farflung.tracking") for one in child_of(served.process.pid, word)]
        scraping = stack.enter_context(_scrapes(page))
        times: dict[bool, list[float]] = {True: [], False: []}
        for number, works in enumerate(order_of(pairs, seed)):
            if number % 20 == 0:
                say(f"block {number + 1} of {2 * pairs}, {len(reporting)} processes")
            for process in reporting:
                os.kill(process, signal.SIGCONT if works else signal.SIGSTOP)
            (scraping.set if works else scraping.clear)()
            steps.take(1)  # it may have begun the other way
            times[works].append(statistics.median(steps.take(block)))
        for process in reporting:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
    found = alternation(times[True], times[False], seed)
    return {
        **asdict(found),
        "uncertainty": found.uncertainty,
        "processes": len(reporting),
        "step_seconds": {"with": times[True], "without": times[False]},
    }


class _Steps:
    """The steps of a run as they are made."""

    def __init__(self, metrics: Path) -> None:
        self._metrics, self._position = metrics, 0
        self._seconds: list[float] = []
        self._pause = threading.Event()

    def take(self, count: int) -> Sequence[float]:
        """Wait for ``count`` steps; return their seconds."""
        while len(self._seconds) < count:
            part = read_more(self._metrics, self._position)
            self._position = part.position
            self._seconds += [one.seconds for one in map(read_record, part.lines) if isinstance(one, StepRecord)]
            if not part.lines:
                self._pause.wait(0.02)
        found, self._seconds = self._seconds[:count], self._seconds[count:]
        return found


@contextmanager
def _scrapes(page: str) -> Iterator[threading.Event]:
    """Read ``page`` as Prometheus does, while the event is set."""
    works, over = threading.Event(), threading.Event()

    def scrape() -> None:
        while not over.wait(_SCRAPE_SECONDS):
            if works.is_set():
                with urllib.request.urlopen(page, timeout=10.0) as answer:  # noqa: S310 - a fixed http address
                    answer.read()

    thread = threading.Thread(target=scrape, name="scrapes")
    thread.start()
    try:
        yield works
    finally:
        over.set()
        thread.join()
