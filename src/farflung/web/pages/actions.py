"""What users with the right may do: stop and continue runs; pause, resume and drain workers; share a read-only link.

Buttons for other users do not exist. Each handler checks the right again, and the broker checks it a third time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from farflung.client.control import ControlClient
from farflung.errors import FarflungError
from farflung.units import Seconds
from farflung.web.pages.page import View
from farflung.web.serving.sign_in import Role
from farflung.web.widgets.html_table import Markup, cell, markup
from farflung.web.widgets.layout import button

__all__ = ["WORKER_ACTIONS", "WorkerAction", "act_on_worker", "confirm", "continue_run", "share_link", "stop_run"]

_SHARED = Seconds(86400.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAction:
    """A button beside a worker. ``offered``: whether it makes sense for the worker's status."""

    name: str
    text: str
    explanation: str
    call: Callable[[ControlClient, str], None]
    offered: Callable[[Mapping[str, Any]], bool]
    tone: str = ""


WORKER_ACTIONS: tuple[WorkerAction, ...] = (
    WorkerAction(
        name="pause",
        text="Pause",
        explanation="Its part of a run moves to other machines. It stays connected.",
        call=lambda client, worker: client.wish(worker, paused=True),
        offered=lambda one: not one.get("paused") and not one.get("parting"),
    ),
    WorkerAction(
        name="resume",
        text="Resume",
        explanation="It takes part in runs again.",
        call=lambda client, worker: client.wish(worker, paused=False),
        offered=lambda one: bool(one.get("paused")),
    ),
    WorkerAction(
        name="drain",
        text="Drain",
        explanation="It leaves when its current run is over.",
        call=lambda client, worker: client.wish(worker, parting="drain"),
        offered=lambda one: not one.get("parting"),
        tone="danger",
    ),
)


async def act_on_worker(view: View, name: str, worker: str) -> None:
    """Do the action ``name`` to ``worker``, after the user has confirmed it."""
    action = next((one for one in WORKER_ACTIONS if one.name == name), None)
    if action is None or not view.user.owns_broker:
        return
    if await confirm(f"{action.text} {worker}?", action.explanation, action.text):
        await _call(view, lambda client: action.call(client, worker), f"{worker}: {action.text.lower()} requested")


async def stop_run(view: View, run: str) -> None:
    """Stop ``run``, after the user has confirmed it."""
    if view.may_control(run) and await confirm(f"Stop {run}?", "It ends after its current step, with a checkpoint.", "Stop"):
        await _call(view, lambda client: client.stop(run), f"{run}: stopping after the current step")


async def continue_run(view: View, run: str) -> None:
    """Submit a run that continues ``run`` from its newest checkpoint, after the user has confirmed it."""
    if not view.may_control(run):
        return
    if await confirm(f"Continue {run}?", "A new run begins at the newest checkpoint of this run.", "Continue"):
        await _call(view, lambda client: f"{client.resume(run, None)['run']} continues {run}")


async def share_link(view: View) -> None:
    """Show a link that lets one other browser read everything, for a day, without any buttons."""
    if not view.user.owns_broker or view.make_link is None:
        return
    text = view.make_link(Role.VIEWER, _SHARED)
    with ui.dialog() as dialog, ui.card():
        markup(Markup("<h2>Read-only link</h2>"))
        markup(Markup("<p>It works once, within a day. Who opens it sees every run, and can change nothing.</p>"))
        markup(Markup(f"<pre class='ff-pre'>{cell(text)}</pre>"))
        button("Close", dialog.close)
    await dialog


async def confirm(question: str, explanation: str, yes: str) -> bool:
    """Ask the user."""
    with ui.dialog() as dialog, ui.card().props(f'role=alertdialog aria-label="{cell(question)}"'):
        markup(Markup(f"<h2>{cell(question)}</h2>"))
        markup(Markup(f"<p>{cell(explanation)}</p>"))
        with ui.element("div").classes("ff-title"):
            button(yes, lambda: dialog.submit(True), "main")
            button("Cancel", lambda: dialog.submit(False))
    answer = await dialog
    if not dialog.is_deleted:  # it is, if the browser was closed meanwhile
        dialog.delete()
    return answer is True


async def _call(view: View, call: Callable[[ControlClient], object], done: str = "") -> None:
    """Call the broker and notify the user of its error, or of ``done`` (empty: of the text that ``call`` returns)."""
    client = view.user.client
    if client is None:
        ui.notify("The broker does not answer; try again when it does.", type="negative")
        return
    try:
        answer = await asyncio.to_thread(call, client)
    except FarflungError as error:
        ui.notify(str(error), type="negative", multi_line=True)
    else:
        ui.notify(done or str(answer), type="positive")
