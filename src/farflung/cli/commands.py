"""The list of commands, and a command group that imports the module of a command when that command runs.

``farflung --help`` and shell completion read only this table. Importing every command takes over a second, because commands
import planners, codecs and, for some, torch.
"""

from __future__ import annotations

from dataclasses import dataclass
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
            "broker": ("cluster", "Start a broker and print its tickets."),
            "join": ("cluster", "Join a broker as a worker."),
            "status": ("runs", "Show workers and runs."),
            "ticket": ("cluster", "Issue, list and revoke tickets."),
            "doctor": ("profiling", "Diagnose this machine."),
            "profile": ("profiling", "Measure the links between all workers."),
        },
    ),
    **_panel(
        "Runs",
        {
            "submit": ("runs", "Submit a job, or continue a run with --resume."),
            "watch": ("runs", "Show the progress of a run until the run ends."),
            "stop": ("runs", "Stop a run after its current step, with a checkpoint."),
            "logs": ("logs", "Show the log of a run, a worker or the broker."),
            "report": ("report", "Write a report of one run, or of several for comparison."),
            "trace": ("tracing", "Show where the time of a run went."),
            "generate": ("generation", "Continue a text with the model of a run."),
            "checkpoint": ("checkpoints", "List, verify, export and copy checkpoints."),
        },
    ),
    **_panel(
        "This worker",
        {
            "pause": ("members", "Pause a worker; its part of a run moves to others."),
            "resume": ("members", "Resume a paused worker."),
            "drain": ("members", "Leave after the worker's current run."),
            "leave": ("members", "Leave after the current step."),
            "limit": ("members", "Limit hours, memory and bandwidth of a worker."),
        },
    ),
    **_panel(
        "Planning",
        {
            "plan": ("planning", "Plan a job for a topology and predict its step time."),
            "simulate": ("simulation", "Run a plan in virtual time."),
            "graph": ("graphs", "Draw a job's model as a graph of operators."),
        },
    ),
    **_panel(
        "Trying it out",
        {
            "demo": ("demo", "Train a small model across two regions. One worker dies."),
            "emulate": ("emulation", "Run a command on an emulated network (Linux, root)."),
            "chaos": ("chaos", "Run a job under injected faults and compare the results."),
        },
    ),
}


class LazyCommands(TyperGroup):
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
