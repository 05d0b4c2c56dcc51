"""The list of commands is complete, and nothing but the chosen command's module is imported."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest
import typer
import typer.main

import farflung.cli
from farflung.cli.commands import COMMANDS

#: Prints the modules that a command line has imported, whatever the command printed before.
IMPORTED = """
import json, sys
from farflung.cli.main import main
try:
    main({arguments!r})
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)))
"""


def imported(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED.format(arguments=list(arguments))], capture_output=True, text=True, timeout=60, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_every_registered_command_is_listed() -> None:
    registered = {}
    for found in pkgutil.iter_modules(farflung.cli.__path__):
        register = getattr(import_module(f"farflung.cli.{found.name}"), "register", None)
        if register is not None:
            part = typer.Typer()
            register(part)
            registered |= dict.fromkeys(typer.main.get_group(part).commands, found.name)
    assert {name: entry.module for name, entry in COMMANDS.items()} == registered


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_summary_is_one_short_sentence(name: str) -> None:
    assert COMMANDS[name].summary.endswith(".")
    assert len(COMMANDS[name].summary) <= 64  # one line of an 80-column terminal


def test_help_imports_no_command() -> None:
    loaded = imported("--help")
    assert {name for name in loaded if name.startswith("farflung.")} <= {
        "farflung.cli",
        "farflung.cli.commands",
        "farflung.cli.main",
        "farflung.errors",
        "farflung.version",
    }
    assert not loaded & {"numpy", "torch", "pydantic", "grpc", "rich.console"}


def test_a_command_imports_its_own_module_only() -> None:
    loaded = imported("pause", "--help")
    assert "farflung.cli.members" in loaded
    assert not loaded & {"farflung.cli.planning", "farflung.cli.demo", "farflung.cli.emulation", "farflung.simulator", "torch"}


def test_the_help_lists_commands_by_topic() -> None:
    done = subprocess.run([sys.executable, "-m", "farflung", "--help"], capture_output=True, text=True, timeout=60, check=True)
    lines = done.stdout.splitlines()
    topics = [line for line in lines if line and not line.startswith(" ")]
    assert topics[1:] == ["Options:", "Cluster:", "Runs:", "This worker:", "Planning:", "Trying it out:"]
    assert {line.split()[0] for line in lines if line.startswith("  ")} >= set(COMMANDS)
