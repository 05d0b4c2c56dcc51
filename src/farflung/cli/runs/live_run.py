"""Shows a run until it is over: a live screen on a terminal, lines elsewhere, or JSON."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from farflung.cli.runs.run_screen import RunScreen
from farflung.cli.runs.run_view import RunView
from farflung.client.control import ControlClient
from farflung.errors import TrainingError
from farflung.foreign_text import printable
from farflung.messages.schema import Message
from farflung.messages.watching import RecordLine, Result
from farflung.messages.wire_form import to_plain
from farflung.telemetry.records import RunResult, StepRecord
from farflung.telemetry.terminal import terminal
from farflung.units import Seconds, counted

__all__ = ["say", "show_json", "show_run"]

#: Pictures per second.
_RATE = 4


def say(console: Console, text: str, style: str = "") -> None:
    """Print ``text`` with its own line ends only: rich would break lines at 80 columns where the output is a file."""
    console.print(Text(text, style=style), soft_wrap=True)


def show_run(
    client: ControlClient,
    run: str,
    *,
    console: Console | None = None,
    view: RunView | None = None,
    on_step: Callable[[StepRecord], None] = lambda record: None,
) -> RunResult:
    """Show ``run`` until it is over; Ctrl-C stops watching, not the run. A run that is over shows its end at once.

    The live screen is the terminal's second one. The events are printed to the first one when the screen ends.
    ``on_step`` is called with each new record.

    Raises:
        TrainingError: the run failed; the text is its cause.
        ConnectionLost: the broker went away.
    """
    console = console or terminal()
    view = view or RunView()
    if console.is_terminal:
        try:
            with _screen(console, RunScreen(view, run)):
                for message in client.watch(run):
                    _take(view, message, on_step)
        finally:
            if view.reported > len(view.events):
                say(console, f"({view.reported - len(view.events)} earlier events: farflung logs {run})")
            for _, text in view.events:
                say(console, text)
            if view.last is not None:
                say(console, view.line())
    else:
        _print_lines(client, run, view, console, on_step)
    result = ended_well(run, view.result)
    where = f"; checkpoint {printable(result.checkpoint)}" if result.checkpoint else ""
    say(console, f"{run}: {result.status} after {counted(result.steps, 'step')} in {Seconds(result.seconds)}{where}")
    return result


def show_json(client: ControlClient, run: str, write: Callable[[str], None]) -> RunResult:
    """Write each message about ``run`` as one line of JSON: a record as in ``metrics.jsonl``, others with their ``kind``.

    Raises:
        TrainingError, ConnectionLost: as ``show_run``.
    """
    result: RunResult | None = None
    for message in client.watch(run):
        if isinstance(message, RecordLine):
            write(message.line.rstrip("\n"))
            continue
        kind, body = to_plain(message)
        if isinstance(message, Result):
            result = RunResult.from_json(message.result)
            body["result"] = json.loads(message.result)
        if "kind" in body:
            body["error"] = body.pop("kind")
        write(json.dumps({"kind": kind, **body}))
    return ended_well(run, result)


def ended_well(run: str, result: RunResult | None) -> RunResult:
    """Return ``result``.

    Raises:
        TrainingError: the run failed, or there is no result.
    """
    if result is None:
        raise TrainingError(f"{run}: the broker sends no more news of this run; see farflung status")
    if result.status == "failed":
        raise TrainingError(f"{run} failed after {counted(result.steps, 'step')}: {printable(result.cause)}")
    return result


def _take(view: RunView, message: Message, on_step: Callable[[StepRecord], None]) -> None:
    """Give ``message`` to the view; its text is an event."""
    before = view.last
    if text := view.take(message):
        view.report(text)
    if view.last is not None and view.last is not before:
        on_step(view.last)


def _print_lines(client: ControlClient, run: str, view: RunView, console: Console, on_step: Callable[[StepRecord], None]) -> None:
    """Print each event, and the state at each tenth of the run."""
    shown = printed = 0
    for message in client.watch(run):
        _take(view, message, on_step)
        for _, text in list(view.events)[len(view.events) - (view.reported - printed) :]:
            say(console, text)
        printed = view.reported
        if isinstance(message, RecordLine) and view.last is not None and view.steps:
            tenth = (view.last.step + 1) * 10 // view.steps
            if tenth > shown:
                shown = tenth
                say(console, view.line())


@contextmanager
def _screen(console: Console, screen: RunScreen) -> Iterator[None]:
    """Draw the live screen. However the block ends, the terminal is as before; also while Ctrl-Z suspends the process."""
    live = Live(screen, console=console, refresh_per_second=_RATE, screen=True, redirect_stdout=False, redirect_stderr=False)

    def suspend(number: int, frame: FrameType | None) -> None:
        live.stop()
        os.kill(os.getpid(), signal.SIGSTOP)
        live.start(refresh=True)

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    handlers = {signal.SIGTSTP: suspend, signal.SIGTERM: leave, signal.SIGHUP: leave}
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()} if main else {}
    try:
        with live:
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
