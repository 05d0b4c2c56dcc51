"""``takeover``: seconds from the permanent loss of the leading broker's machine to the next step, and what the loss costs.

Two brokers, a database, and two workers are processes of one machine. In the middle of a run, the broker that leads gets SIGKILL
and its folder is deleted. The other broker takes over. Judged are the time until it leads, the committed steps that are missing
on record, and the tensors that differ from those of an undisturbed run. The time until the next step is reported beside it.
"""

from __future__ import annotations

import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.programs import Program, start
from farflung.api.submission import bundle_job
from farflung.chaos.kills import differing_tensors
from farflung.child_processes import end_all
from farflung.client.connection import Client
from farflung.ids import new_id
from farflung.job import make_job
from farflung.messages.submission import Bundle
from farflung.messages.watching import RecordLine
from farflung.security import Ticket
from farflung.telemetry import RunFolder, StepRecord, read_record
from farflung.units import Seconds
from farflung.worker.membership import join

__all__ = ["Loss", "Takeover", "TakeoverSettings", "report_of"]

_TARGET = 15.0
_WORKERS = ("worker-0", "worker-1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverSettings(Settings):
    """``times``: losses of a leader, each after ``before`` of ``steps``. ``records``: a URL (empty: SQLite)."""

    times: int = 3
    before: int = 50
    steps: int = 300
    width: int = 64
    layers: int = 4
    records: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What one loss cost. ``leads``, ``trains``: seconds until the standby served, and until the next step."""

    leads: float
    trains: float
    missing: int
    differing: int


class Takeover:
    """The loss of the leader's machine."""

    name = "takeover"
    summary = "the machine of the leading broker is lost in mid run: seconds until a standby leads, lost steps, differing weights"

    def settings(self, quick: bool) -> TakeoverSettings:
        """Quick: one loss in a short run."""
        return TakeoverSettings(quick=True, times=1, before=10, steps=40, width=16) if quick else TakeoverSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, TakeoverSettings)
        found = []
        for _ in range(settings.times):
            with tempfile.TemporaryDirectory(prefix="farflung-takeover-") as folder:
                found.append(_once(settings, Path(folder)))
                say(f"leads after {found[-1].leads:.2f} s, trains after {found[-1].trains:.2f} s")
        return report_of(found)


def report_of(found: Sequence[Loss]) -> Report:
    """Compare the worst loss with the targets."""
    leads, trains = [one.leads for one in found], [one.trains for one in found]
    missing, differing = sum(one.missing for one in found), sum(one.differing for one in found)
    checks = [
        Check(name="takeover", target=f"{_TARGET:g} s", measured=f"{max(leads):.1f} s at most", passed=max(leads) <= _TARGET),
        Check(name="committed steps lost", target="0", measured=str(missing), passed=missing == 0),
        Check(name="tensors that differ", target="0", measured=str(differing), passed=differing == 0),
    ]
    figures = {"leads_seconds": leads, "trains_seconds": trains, "missing_steps": missing, "differing_tensors": differing}
    row = (len(found), statistics.median(leads), max(leads), statistics.median(trains), max(trains))
    columns = ("losses", "leads s (median)", "leads s (worst)", "next step s (median)", "next step s (worst)")
    return Report(figures=figures, columns=columns, rows=[row], checks=checks)


def _once(settings: TakeoverSettings, place: Path) -> Loss:
    (place / "text.txt").write_text("".join(f"def f{i}(x):\n    return x + {i * i}\n" for i in range(400)))
    first = _bundle(settings, place)
    with _cluster(settings, place) as (programs, ticket):
        client = Client(join(Ticket.parse(ticket), name="bench", role="client"))
        client.patience = Seconds(300.0)
        try:
            client.submit(first)
            times = _Steps(client, first.run)
            times.until(settings.before)
            programs["a"].process.kill()
            programs["a"].process.wait()
            killed = time.monotonic()
            shutil.rmtree(place / "a")
            served = _Moment(lambda: "(members: port" in programs["b"].log.read_text(errors="replace"))
            again = times.until(settings.steps)
        finally:
            client.close()
        _undisturbed(replace(first, run=new_id("run")), ticket)
        runs = {run.name: run for run in (place / "b" / "runs").iterdir()}
        lost, whole = runs.pop(first.run), next(iter(runs.values()))
        steps = [record.step for record in RunFolder(lost).records() if isinstance(record, StepRecord)]
        missing = len(set(range(settings.steps)) - set(steps))
        served.join()
        return Loss(
            leads=served.seconds - killed,
            trains=next(at for at in again if at > killed) - killed,
            missing=missing,
            differing=len(differing_tensors(lost, whole)),
        )


def _undisturbed(bundle: Bundle, ticket: str) -> None:
    client = Client(join(Ticket.parse(ticket), name="bench-2", role="client"))
    try:
        client.submit(bundle)
        for _ in client.watch(bundle.run):
            pass
    finally:
        client.close()


class _Steps:
    """When the steps of a run came to the one that watches it."""

    def __init__(self, client: Client, run: str) -> None:
        self._messages = client.watch(run)
        self.times: list[float] = []

    def until(self, count: int) -> list[float]:
        """Read until ``count`` steps are on record, or the run is over; return all times."""
        for message in self._messages:
            if isinstance(message, RecordLine) and isinstance(read_record(message.line), StepRecord):
                self.times.append(time.monotonic())
                if len(self.times) == count:
                    break
        if len(self.times) >= count:
            return self.times
        raise AssertionError(f"the run ended after {len(self.times)} steps")


class _Moment(threading.Thread):
    """Notes when ``holds`` is true."""

    def __init__(self, holds: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self._holds, self.seconds = holds, 0.0
        self.start()

    def run(self) -> None:
        """Look every 20 ms."""
        pause = threading.Event()
        while not self._holds():
            pause.wait(0.02)
        self.seconds = time.monotonic()


@contextmanager
def _cluster(settings: TakeoverSettings, place: Path) -> Iterator[tuple[dict[str, Program], str]]:
    """Both brokers and the workers, and a ticket to submit."""
    programs: dict[str, Program] = {}
    records = settings.records or f"sqlite:///{place}/records.sqlite"

    def run(name: str, *words: str) -> Program:
        programs[name] = start([sys.executable, "-u", "-m", "farflung", *words], place / f"{name}.log")
        return programs[name]

    def broker(name: str, *more: str) -> Program:
        with socket.create_server(("127.0.0.1", 0)) as free:
            listen = f"127.0.0.1:{free.getsockname()[1]}"
        return run(name, "broker", "--listen", listen, "--no-web", "--home", str(place / name), "--records", records, *more)

    with ExitStack() as stack:
        stack.callback(lambda: end_all([one.process for one in reversed(programs.values())], 30.0))
        broker("a").until("farflung join")
        broker("b", "--standby").until("standing by at")
        found = programs["a"].until(r"(?s)tickets from now on name them.*?farflung join (\S+).*?--ticket (\S+)")
        for name in _WORKERS:
            run(name, "join", found[1], "--name", name, "--listen", "127.0.0.1:0", "--data", str(place)).until(
                "joined the broker"
            )
        yield programs, found[2]


def _bundle(settings: TakeoverSettings, place: Path) -> Bundle:
    args = {"vocab": 256, "sequence": 32, "layers": settings.layers, "width": settings.width, "heads": 2}
    document = {
        "name": "takeover",
        "seed": settings.seed,
        "steps": settings.steps,
        "workers": len(_WORKERS),
        "micro_batch_sizes": [2, 2],
        "model": {"recipe": "gpt", "args": args},
        "data": {"kind": "text", "path": "text.txt", "tokenizer": "bytes", "sequence": 32},
        "optimizer": {"name": "adamw", "lr": 1e-3},
        "plan": {"planner": "equal_compute"},
    }
    return bundle_job(make_job(document), base=place)
