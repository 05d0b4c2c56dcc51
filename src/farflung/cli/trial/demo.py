"""``farflung demo``: a broker and four workers as processes on this machine, and a model trained across a slow link."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from farflung.cli.home import own_key
from farflung.cli.options import JsonOption, echo_json
from farflung.cli.runs.live_run import say, show_run
from farflung.cli.runs.run_view import RunView
from farflung.cli.trial.child_commands import Children
from farflung.cli.trial.demo_runs import PRESET, VICTIM, DemoRun, demo_job, demo_runs, share_of_time
from farflung.client.connection import Client
from farflung.clock import date_text, monotonic, sleep
from farflung.cluster import Topology
from farflung.errors import FarflungError, InputError, Stopped, TrainingError
from farflung.foreign_text import printable
from farflung.ids import new_id
from farflung.messages.submission import Bundle
from farflung.telemetry.records import RunResult, StepRecord
from farflung.telemetry.terminal import terminal
from farflung.thread_group import ThreadGroup
from farflung.units import Seconds, counted

__all__ = ["TimeLimit", "register"]

#: Seconds for the whole command, and what is kept of them for starting, evaluating, writing text and reports.
WHOLE_SECONDS, RESERVED_SECONDS = 170.0, 35.0
_START_SECONDS = 90.0
_GRACE = 20.0
#: How often it is looked whether all processes live, and how long the broker has to say itself that one does not.
_LOOK_SECONDS, _PATIENCE_SECONDS = 1.0, 5.0
#: What a reader may expect of the text.
_TEXT = "(a model this small and this young has learned letters, spaces and short words of Python; it makes no sense yet)"


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(demo)


def demo(
    folder: Annotated[Path | None, typer.Option(help="New folder for everything (default: runs/demo-<time>).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A tiny model and a few steps: does it work here?")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of every run at most.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a small language model across two emulated regions, dense and compressed, and kill a worker on the way.

    With --json, standard output has the comparison only, and everything else goes to standard error.
    """
    console = terminal(stderr=as_json)
    place = (folder or Path("runs") / date_text("demo-%Y%m%d-%H%M%S")).absolute()
    try:
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise InputError(f"{place} is not empty: name a new folder with --folder")
    except OSError as error:
        raise InputError(f"the folder {place} can't be made: {error.strerror}; name another with --folder") from None
    environment = {
        "FARFLUNG_HOME": str(place / "home"),
        "XDG_CACHE_HOME": str(place / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    try:
        with _signals(), Children(place / "logs", environment) as children:
            stage = _Demo(children, console, place, quick=quick)
            try:
                found = stage.play(demo_runs(quick=quick, steps=steps))
            except FarflungError as error:
                raise stage.explained(error) from error
    except KeyboardInterrupt:
        raise Stopped(f"interrupted; what was started is ended, what was trained is in {place}") from None
    if as_json:
        echo_json(found)


@contextmanager
def _signals() -> Iterator[None]:
    """Handle other signals that end a process like Ctrl-C, so that all child processes end first."""

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    names = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(name, leave) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@dataclass(frozen=True, slots=True)
class _Done:
    label: str
    folder: Path
    result: RunResult


class _Demo:
    """The cluster, and the runs on it, one after the other."""

    def __init__(self, children: Children, console: Console, place: Path, *, quick: bool) -> None:
        self._children = children
        self._console = console
        self._place = place
        self._quick = quick
        self._begin = monotonic()
        self._topology = Topology.preset(PRESET)
        self._captured: Bundle | None = None
        self._step_seconds: list[float] = []

    def play(self, runs: Sequence[DemoRun]) -> dict[str, object]:
        """Run everything, from starting the processes to the last line. Return the facts for ``--json``."""
        say(self._console, f"everything of this demo goes to {self._place}")
        client = self._start()
        try:
            done = [self._train(client, index, runs) for index in range(len(runs))]
        finally:
            client.close()
        return self._conclude(done)

    def explained(self, error: FarflungError) -> FarflungError:
        """``error``, or what became of a child if that is the reason."""
        try:
            self._children.check()
        except TrainingError as cause:
            return error if str(cause) == str(error) else TrainingError(f"{error}\n{cause}")
        return error

    # -- the cluster --------------------------------------------------------------------------------------------------

    def _start(self) -> Client:
        from farflung.security import Ticket
        from farflung.worker.membership import join

        children, names = self._children, self._topology.names
        say(self._console, f"starting a broker and {len(names)} workers ({', '.join(names)}) as processes of this machine")
        say(self._console, "each loads PyTorch and measures its speed: half a minute or so on two cores")
        children.start("broker", ["broker", "--listen", "127.0.0.1:0", "--no-web", "--home", str(self._place / "broker")])
        invitation = children.await_line("broker", r"farflung join (\S+)\n", _START_SECONDS)[1]
        ticket = children.await_line("broker", r"--ticket (\S+)\n", _START_SECONDS)[1]
        for name in names:
            children.start(name, ["join", invitation, "--name", name, "--listen", "127.0.0.1:0"])
        say(self._console, f"the broker is there after {self._clock()}; while the workers start, this process captures the model")
        self._capture()
        client = Client(join(Ticket.parse(ticket), name="demo", role="client", key=own_key()))
        self._await_workers(client)
        return client

    def _await_workers(self, client: Client) -> None:
        deadline = monotonic() + _START_SECONDS
        missing = set(self._topology.names)
        while missing:
            self._children.check()
            members = client.status()["members"]
            assert isinstance(members, list)
            joined = missing & {str(member["name"]) for member in members}
            missing -= joined
            for name in sorted(joined):
                say(self._console, f"{name} joined after {self._clock()}")
            if missing and monotonic() > deadline:
                raise TrainingError(
                    f"{', '.join(sorted(missing))} did not join within {_START_SECONDS:g} s; "
                    f"see {self._children.log(min(missing))}"
                )
            sleep(0.1)
        say(self._console, f"all workers are there after {self._clock()}")

    def _clock(self) -> Seconds:
        return Seconds(monotonic() - self._begin)

    def _capture(self) -> None:
        """Once for all runs: the codec does not change the graph."""
        from farflung.api.submission import bundle_job

        with_text = DemoRun(label="capture", codec=demo_runs(quick=self._quick, steps=1)[0].codec, steps=1, seconds=0, text=True)
        job = demo_job(with_text, quick=self._quick)
        self._captured = bundle_job(job, base=Path(), topology=self._topology, emulate=True)
        parameters = sum(state.spec.numel for state in self._captured.graph.parameters)
        link = self._topology.link("east-0", "west-0")
        say(
            self._console,
            f"model: a byte-level GPT of {parameters:,} parameters; data: the sources of Python's standard library; "
            f"between the regions {link.bandwidth * 8 / 1e6:g} Mbit/s and {Seconds(link.latency)}",
        )

    # -- runs ---------------------------------------------------------------------------------------------------------

    def _train(self, client: Client, index: int, runs: Sequence[DemoRun]) -> _Done:
        assert self._captured is not None
        limit = share_of_time(runs[index:], WHOLE_SECONDS - RESERVED_SECONDS - (monotonic() - self._begin))
        run = runs[index].within(limit, self._step_seconds)
        job = demo_job(run, quick=self._quick)
        generated = self._captured.generate_graph if run.text else None
        bundle = replace(self._captured, run=new_id("run"), job=job, generate_graph=generated)
        bound = f" in {limit * run.patience:.0f} s at most" if run.steps > run.least else ""
        say(self._console, f"\n{index + 1} of {len(runs)}: {run.label}, {counted(run.steps, 'step')}{bound}", "bold")
        folder = Path(client.submit(bundle)["folder"])
        view = RunView(run.label, plan=index == 0)
        with TimeLimit(client, bundle.run, limit * run.patience, self._children.check, range(run.least, run.steps)) as guard:

            def on_step(record: StepRecord) -> None:
                guard.on_step(record)
                if run.victim in self._children.pids and record.step + 1 >= run.death:
                    self._kill(run.victim, view)

            result = show_run(client, bundle.run, console=self._console, view=view, on_step=on_step)
        self._children.check()  # a run that waits for a worker that is dead was ended for that
        if guard.reached:
            share = (
                f"its share of the demo, {Seconds(limit * run.patience)}, was over"
                if limit
                else "the demo had no time left for it"
            )
            say(self._console, f"{run.label} stopped before its last step, because {share}")
        self._step_seconds.append(view.usual)
        return _Done(run.label, folder, result)

    def _kill(self, victim: str, view: RunView) -> None:
        view.report(f"the demo kills worker {victim} now (SIGKILL), in the middle of the run: watch what happens")
        self._children.kill(victim)

    def _conclude(self, done: Sequence[_Done]) -> dict[str, object]:
        from farflung.cli.trial.demo_results import compare, explanation, results_table  # brings matplotlib, which takes seconds
        from farflung.cli.trial.demo_summary import demo_facts, last_lines, recovery_lines
        from farflung.web.reports import compare_report, load_run, write_report

        runs = [load_run(one.folder, one.label) for one in done]
        comparison = compare(runs)
        say(self._console, "\nThe same model, data and seed; only the codec differs:", "bold")
        say(self._console, results_table(comparison))
        say(self._console, explanation(comparison))
        for one, run in zip(done, runs, strict=True):
            if lines := recovery_lines(run):
                say(self._console, f"\nThe death of {VICTIM} in the run {run.label}:", "bold")
                say(self._console, lines)
            if one.result.sample:
                say(self._console, f"\ntext by {one.label}:", "bold")
                say(self._console, _TEXT)
                say(self._console, printable(one.result.sample))
        for one in done:
            write_report(one.folder)
        page = compare_report([one.folder for one in done], [one.label for one in done], self._place / "report.html")
        say(self._console, f"\nthe whole demo took {self._clock()}")
        say(self._console, "\nWhat happened, and what to do next:", "bold")
        say(self._console, last_lines(comparison, runs, page, [one.folder for one in done]))
        places = {"folder": str(self._place), "report": str(page), "seconds": float(self._clock())}
        return places | demo_facts(comparison, runs, [one.folder for one in done])


class TimeLimit:
    """Ends a run that takes too long: after a step when ``seconds`` have passed, at once when even that does not come.

    ``between``: the numbers of completed steps after which the run may be stopped; after its last step it ends by itself.

    Also one that waits for a process that has died: ``alive`` raises then. (If the run has begun, the broker ends it itself.)
    """

    def __init__(self, client: Client, run: str, seconds: float, alive: Callable[[], None], between: range) -> None:
        self._client, self._run, self._seconds, self._alive, self._between = client, run, seconds, alive, between
        self.reached = False
        self._over = threading.Event()
        self._threads = ThreadGroup()

    def __enter__(self) -> TimeLimit:
        latest = _START_SECONDS + self._seconds + _GRACE
        self._threads.spawn("demo-guard", self._watch)
        self._threads.later(latest, "demo-abort", self._abort)
        self._threads.later(latest + _GRACE, "demo-close", self._client.close)
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._threads.cancel()
        self._threads.join(_PATIENCE_SECONDS)

    def on_step(self, record: StepRecord) -> None:
        """Ask for the end when the time is over."""
        if record.elapsed > self._seconds and record.step + 1 in self._between and not self.reached:
            self.reached = True
            self._client.stop(self._run)

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            try:
                self._alive()
            except TrainingError:
                if not self._over.wait(_PATIENCE_SECONDS):
                    self._abort()
                return

    def _abort(self) -> None:
        with suppress(FarflungError):
            self._client.stop(self._run, now=True)
