"""The list of commands, and a command group that imports the module of a command when that command runs.

``farflung --help`` and shell completion read only this table. Importing every command takes over a second, because commands
import planners, codecs and, for some, torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["COMMANDS", "CommandEntry", "LazyCommands"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEntry:
    """One line of ``farflung --help``: ``module`` of ``farflung.cli`` registers the command, ``panel`` is the section."""

    panel: str
    module: str
    summary: str


def _panel(title: str, commands: dict[str, tuple[str, str]]) -> dict[str, CommandEntry]:
    return {name: CommandEntry(panel=title, module=module, summary=text) for name, (module, text) in commands.items()}


#: Commands in the order of ``farflung --help``.
COMMANDS: dict[str, CommandEntry] = {
    **_panel(
        "Cluster",
        {
            "broker": ("cluster.broker", "Start a broker and print its tickets."),
            "join": ("cluster.join", "Join a broker as a worker."),
            "status": ("cluster.status", "Show workers and runs."),
            "web": ("cluster.web", "Show machines and runs in a browser."),
            "ticket": ("cluster.tickets", "Issue, list and revoke tickets."),
            "kick": ("cluster.kick", "Remove a member and bar its key."),
            "backup": ("cluster.broker_records", "Write a broker's keys, tickets, runs and checkpoints to a file."),
            "restore": ("cluster.broker_records", "Make a broker's folder from a backup."),
            "doctor": ("cluster.doctor", "Diagnose this machine."),
            "profile": ("cluster.profile", "Measure the links between all workers."),
            "up": ("cluster.launch", "Start the broker and the workers of a cluster file."),
            "scale": ("cluster.launch", "Change the number of workers of a cluster."),
            "down": ("cluster.launch", "Stop the workers and the broker of a cluster."),
        },
    ),
    **_panel(
        "Runs",
        {
            "submit": ("runs.submit", "Submit a job, or continue a run with --resume."),
            "watch": ("runs.watch", "Show the progress of a run until the run ends."),
            "stop": ("runs.stop", "Stop a run after its current step, with a checkpoint."),
            "logs": ("runs.logs", "Show the log of a run, a worker or the broker."),
            "report": ("runs.report", "Write a report of one run, or of several for comparison."),
            "ledger": ("runs.ledger", "Show what each machine contributed to runs, and what that cost."),
            "trace": ("runs.trace", "Show where the time of a run went."),
            "serve": ("runs.serve", "Serve a language model with the OpenAI API on the workers."),
            "generate": ("runs.generate", "Continue a text with the model of a run."),
            "checkpoint": ("runs.checkpoint", "List, verify, export and copy checkpoints."),
        },
    ),
    **_panel(
        "This worker",
        {
            "pause": ("cluster.owner", "Pause a worker; its part of a run moves to others."),
            "resume": ("cluster.owner", "Resume a paused worker."),
            "drain": ("cluster.owner", "Leave after the worker's current run."),
            "leave": ("cluster.owner", "Leave after the current step."),
            "limit": ("cluster.owner", "Limit hours, memory and bandwidth of a worker."),
        },
    ),
    **_panel(
        "Planning",
        {
            "plan": ("planning.plan", "Plan a job for a topology, or explain the plan of a run."),
            "simulate": ("planning.simulate", "Run a plan in virtual time."),
            "graph": ("planning.graph", "Draw a job's model as a graph of operators."),
        },
    ),
    **_panel(
        "Trying it out",
        {
            "demo": ("trial.demo", "Train a small model across two regions. One worker dies."),
            "emulate": ("trial.emulate", "Run a command on an emulated network (Linux, root)."),
            "chaos": ("trial.chaos", "Run a job under injected faults and compare the results."),
        },
    ),
}


class _LeanParameters:
    """Parameters that are not converted where they are absent.

    typer imports pydantic for each conversion, also that of ``None`` to ``None``. The import takes as long as that of typer.
    """

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters."""
        found = super().get_params(ctx)  # type: ignore[misc]
        for parameter in found:
            if "process_value" not in vars(parameter):
                parameter.process_value = partial(_processed, parameter, parameter.process_value)
            if parameter.param_type_name == "argument" and parameter.metavar is None:
                parameter.metavar = parameter.name.upper()  # as in the reference
        return found

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line: a required argument without braces, as in the reference."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]  # type: ignore[misc]


def _processed(parameter: Any, convert: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    absent = value is None and not parameter.required and parameter.nargs == 1 and not parameter.multiple
    if not absent:
        return convert(ctx, value)
    return None if parameter.callback is None else parameter.callback(ctx, parameter, None)


class _LeanCommand(_LeanParameters, TyperCommand):
    """A command."""


class LazyCommands(_LeanParameters, TyperGroup):
    """A group whose commands come from ``COMMANDS``. A command's module is imported when ``get_command`` asks for the command."""

    entries: ClassVar[dict[str, CommandEntry]] = COMMANDS

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._listing = False
        own = dict(self.commands)
        self.commands.clear()
        for name, entry in self.entries.items():
            self.add_command(TyperCommand(name, help=entry.summary, rich_help_panel=entry.panel))
        self.commands.update(own)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command ``cmd_name``, or ``None``. While help or completion list the commands, it is a placeholder."""
        entry = self.entries.get(cmd_name)
        if entry is None or self._listing:
            return super().get_command(ctx, cmd_name)
        part = typer.Typer()
        import_module(f"farflung.cli.{entry.module}").register(part)
        groups = [group.typer_instance for group in part.registered_groups if group.typer_instance is not None]
        for command in (one for group in (part, *groups) for one in group.registered_commands):
            command.cls = _LeanCommand
        return typer.main.get_group(part).commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section of the help for each panel."""
        width = max(map(len, self.entries))
        for panel in dict.fromkeys(entry.panel for entry in self.entries.values()):
            with formatter.section(panel):
                rows = [(name.ljust(width), entry.summary) for name, entry in self.entries.items() if entry.panel == panel]
                formatter.write_dl(rows)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete the name of a command without importing any command."""
        self._listing = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._listing = False
